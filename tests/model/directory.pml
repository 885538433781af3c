/* directory.pml - I8: the router's directory of cached blocks equals the node's truth once events have drained.
 * One node (a cache of two names, a ring of two numbered events), one router, one ordered session between them that may be
 * cut; either process may start again. node_publish and node_on_hello of node/core, rt_node_on_events, _on_snapshot, _on_status
 * and _on_welcome of router/core; a snapshot comes in two messages. MUTANT=n plants one mistake, MUTANT=n+m two. */
#ifndef CHANGES
#define CHANGES 4 /* of the cache */
#endif
#ifndef CUTS
#define CUTS 1
#endif
#ifndef RESTARTS
#define RESTARTS 1 /* of each */
#endif
c_decl { \#include "planted.h" }
#define MUT(n) (c_expr { (planted >> (n)) & 1 })
#define OK(n) (c_expr { !((planted >> (n)) & 1) })
#define RING 2
#define HAS(m, n) (((m) >> (n)) & 1)
#define BIT(n) (1 << (n))

mtype = { HELLO, ASK, WELCOME, EVENT, PART, STATUS };
chan toN = [2] of { mtype, byte }; /* HELLO{events seen}, ASK */
chan toR = [8] of { mtype, byte, byte, byte }; /* number or epoch, then what it says */

byte changes = CHANGES, cuts = CUTS, nRestarts = RESTARTS, rRestarts = RESTARTS;
bool link;
/* the node: names cached; number of the next event; the ring; its session */
byte cache, nNext = 1, nEpoch, nSent;
byte ringName[RING];
bool ringStored[RING], nUp, nDue;
/* the router */
byte dir, seen, rNext, rEpoch = 15, partNext, asked;
bool synced, lagged, due, running, welcomed;
hidden byte k, a, b, c;

inline change(name) {
  if
  :: HAS(cache, name) -> cache = cache - BIT(name); ringStored[nNext % RING] = false
  :: else -> cache = cache | BIT(name); ringStored[nNext % RING] = true
  fi;
  ringName[nNext % RING] = name;
  if
  :: MUT(7) && !HAS(cache, name) -> skip /* mutant 7: what is evicted is not told */
  :: else -> nNext++
  fi;
  changes--
}
inline cut() {
  link = false;
  do
  :: len(toN) > 0 -> toN ? _, _
  :: len(toR) > 0 -> toR ? _, _, _, _
  :: else -> break
  od;
  nUp = false; nDue = false;
  welcomed = false;
  running = false
}
inline forget() { /* all that R knew of the process before */
  dir = 0; synced = false; lagged = false; running = false; due = false
}

active proctype Node() {
end:
  do
  :: d_step { changes > 0 -> change(0) }
  :: d_step { changes > 0 -> change(1) }
  :: d_step { link && len(toN) > 0 && len(toR) <= 5 ->
      if
      :: toN ? HELLO, a ->
        nUp = true;
        if
        :: OK(3) -> nSent = a /* mutant 3: what was sent counts as heard */
        :: else
        fi;
        nDue = (a >= nNext);
        toR ! WELCOME, nEpoch, nNext, 0
      :: toN ? ASK, _ -> nDue = true
      fi }
  :: d_step { link && nUp && nDue && len(toR) <= 5 -> /* the snapshot, a name in each part; 2: none */
      toR ! PART, nNext, 1, (HAS(cache, 0) -> 0 : 2);
      toR ! PART, nNext, 0, (HAS(cache, 1) -> 1 : 2);
      nSent = nNext - 1; nDue = false }
  :: d_step { link && nUp && !nDue && nSent + 1 < nNext && len(toR) <= 5 ->
      if
      :: nNext - (nSent + 1) > RING && OK(5) -> nDue = true /* mutant 5: overwritten events are read */
      :: else -> nSent++; toR ! EVENT, nSent, ringStored[nSent % RING], ringName[nSent % RING]
      fi }
  :: d_step { link && nUp && len(toR) == 0 && rNext != nNext && !(lagged && MUT(4)) -> toR ! STATUS, nNext, 0, 0 }
  :: d_step { nRestarts > 0 -> nRestarts--; nEpoch++; cut(); cache = 0; nNext = 1; nSent = 0; ringName[0] = 0; ringName[1] = 0;
      ringStored[0] = false; ringStored[1] = false }
  od
}

inline on_welcome() { /* a: epoch, b: next event */
  if
  :: a != rEpoch && OK(2) -> forget(); rNext = 0 /* mutant 2: a restart is not noticed */
  :: else
  fi;
  rEpoch = a;
  welcomed = true;
  if
  :: !synced && b == 1 -> synced = true; rNext = 1
  :: else
  fi;
  if
  :: !synced -> due = true
  :: else
  fi;
  lagged = false;
  on_status(b)
}
inline on_status(next) {
  c = (synced && next > rNext);
  if
  :: c && lagged && !running && OK(4) -> synced = false; due = true /* mutant 4: a lag without movement is not noticed */
  :: else
  fi;
  lagged = c
}
inline on_event() { /* a: number */
  if
  :: !synced -> skip
  :: else ->
    lagged = false;
    if
    :: a > rNext && OK(1) -> synced = false; due = true /* mutant 1: a gap is not noticed */
    :: a < rNext -> skip
    :: else ->
      if
      :: b -> dir = dir | BIT(c)
      :: else -> dir = dir & (255 - BIT(c))
      fi;
      rNext = a + 1
    fi
  fi
}
inline on_part() { /* a: next event, b: the first, c: name */
  if
  :: b -> running = true; partNext = a; seen = 0
  :: else
  fi;
  if
  :: !running -> skip
  :: running && a != partNext -> running = false; synced = false; due = true
  :: else ->
    if
    :: c < 2 -> dir = dir | BIT(c); seen = seen | BIT(c)
    :: else
    fi;
    if
    :: !b ->
      if
      :: OK(6) -> dir = dir & seen /* mutant 6: what a snapshot does not name stays */
      :: else
      fi;
      running = false; lagged = false; synced = true; rNext = partNext;
      seen = 0; partNext = 0
    :: else
    fi
  fi
}
active proctype Router() {
end:
  do
  :: d_step { !link -> link = true; toN ! HELLO, (synced -> rNext - 1 : 0) }
  :: d_step { link && len(toR) > 0 ->
      toR ? k, a, b, c;
      if
      :: k == WELCOME -> on_welcome()
      :: k == STATUS -> on_status(a)
      :: k == EVENT -> on_event()
      :: k == PART -> on_part()
      fi;
      assert(!(synced && !running && rNext == nNext && rEpoch == nEpoch && len(toR) == 0) || dir == cache) } /* I8 */
  :: d_step { link && welcomed && due && len(toN) == 0 -> due = false; toN ! ASK, 0 }
  :: d_step { asked == 0 && link && welcomed && len(toN) == 0 -> asked = 1; toN ! ASK, 0 } /* an audit compares */
  :: d_step { cuts > 0 && link -> cuts--; cut() }
  :: d_step { rRestarts > 0 ->
      rRestarts--; cut(); forget(); rNext = 0;
      rEpoch = 15; seen = 0; partNext = 0; asked = 1 }
  od
}
active proctype Rest() {
end:
  timeout -> d_step { assert(link && welcomed && synced && dir == cache && rNext == nNext) }
}
