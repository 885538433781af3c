/* kvferry.pml - how pages change hands: router R, prefill nodes P, decode nodes D, and an environment that breaks things.
 * What is modelled and what is not: README.md. Parameters are macros (scripts/verify gives them); MUTANT=n plants one mistake.
 *
 * One atomic step is one event of a pure core (router/core, node/core with kvtransfer and kvcache). Sessions and links are
 * FIFO channels; a cut loses what is under way, late frames of a cut link may still arrive beside those of its successor. */
#ifndef NREQ
#define NREQ 1
#endif
#ifndef NP
#define NP 1
#endif
#ifndef ND
#define ND 1
#endif
#ifndef LAYERS
#define LAYERS 1
#endif
#ifndef NTOK
#define NTOK 2 /* output tokens of a request */
#endif
#ifndef DPOOL
#define DPOOL 2 /* blocks of a decode node's pool */
#endif
#ifndef SHARED
#define SHARED 0 /* 1: the first block of all requests holds the same tokens */
#endif
#ifndef GROW
#define GROW 0 /* 1: the last token needs a block that nobody booked */
#endif
#ifndef SUSPECTS
#define SUSPECTS 0 /* 1: steps of a prefill engine begin and end, Prefilling names them, deaths count (router/core suspects.c); 0: they stray */
#endif
#ifndef POISON
#define POISON 0 /* 1: an engine that is at the first block of request 0 dies of it */
#endif
#ifndef FAULTS
#define FAULTS 1 /* in all, of the kinds below */
#endif
#ifndef CANCELS
#define CANCELS 1
#endif
#define KIND_CRASH 1
#define KIND_SESSION 2
#define KIND_LINK 4
#define KIND_CORRUPT 8
#define KIND_DUP 16
#define KIND_TIME 32 /* leases, holds and queue times that end early: clocks and frozen processes */
#define KIND_REFUSE 64
#define KIND_ROUTER 128
#ifndef KINDS
#define KINDS 255
#endif
/* One verifier for every mutant and every budget of faults: the environment says which (MUTANT, FAULTS, CANCELS, KINDS). */
c_decl { \#include "planted.h"
  static int kinds; }
#define MUT(n) (c_expr { (planted >> (n)) & 1 })
#define OK(n) (c_expr { !((planted >> (n)) & 1) })

#define NN (ND + NP) /* nodes: decode nodes first */
#define NQ (ND * NP) /* links, of p to d: d * NP + p */
#define NBLK 2
#define NPG (NBLK * LAYERS)
#define MASK0 ((1 << LAYERS) - 1)
#define MASKALL ((1 << NPG) - 1)
#define NONE 15
#define ATTEMPTS_MAX 3
#define HANDBACKS_MAX 4
#define SC 10
#define LC 4
#define KEY(r, a) ((r) * 16 + (a))
/* What stands in a page: nothing useful (0), the shared prefix, or a block of one request with `base` output tokens in it. */
#define WANT0(r) (1 + (SHARED -> 0 : (r)))
#define WANT1(r, base) (16 + (r) * 4 + (base))
#define BIT(n) (1 << (n))
#define HAS(m, n) (((m) >> (n)) & 1)

/* R to node */
#define M_HELLO 1
#define M_RESERVE 2
#define M_PREFILL 3
#define M_CANCEL 4
/* node to R */
#define M_WELCOME 5
#define M_GRANTED 6
#define M_QUEUED 7
#define M_STALE 8
#define M_ALREADY 9
#define M_STARTED 10
#define M_TOKEN 11
#define M_FAILED 12
#define M_PREEMPTED 13
#define M_SHIPPED 14
#define M_REFUSED 15
#define M_PREFILLING 16
#define WHY_GONE 1
#define WHY_AGAIN 2
#define WHY_LOST 3
/* P to D, D to P */
#define F_OPEN 1
#define F_PAGE 2
#define F_COMMIT 3
#define F_CANCEL 4
#define F_OPENED 5
#define F_COMMITTED 6
#define F_MISSING 7
#define F_GONE 8

#define MOVE(from, to, event)
#define STATE(n) B_##n,
mtype = {
#include "../../kvcache/src/block_moves.h"
#undef STATE
#define STATE(n) RX_##n,
#include "../../kvtransfer/src/grant_moves.h"
#undef STATE
#define STATE(n) TX_##n,
#include "../../kvtransfer/src/handoff_moves.h"
#undef STATE
#define STATE(n) REQ_##n,
#include "../../node/core/src/request_moves.h"
#undef STATE
#define STATE(n) LEG_##n,
#include "../../router/core/src/leg_moves.h"
  STATES_END };
#undef STATE
#undef MOVE
#define STATE(n)

/* ---------------------------------------------------------------- state */
chan toN[NN] = [SC] of { byte, byte, byte, byte };
chan toR[NN] = [SC] of { byte, byte, byte, byte };
chan pd[NQ * 2] = [LC] of { byte, byte, byte, byte }; /* two connections of a pair: the live one and the one before */
chan dp[NQ] = [LC] of { byte, byte, byte };

byte faults, cancels, ended;
byte slack[NREQ]; /* how many attempts more may be lost: what broke so far, but no session that is back in time; counted up to 3 */

bool alive[NN] = true;
byte epoch[NN];
bool up[NN], nodeUp[NN]; /* session: at R; at the node, which begins with Hello */
bool linkUp[NQ];
byte linkN[NQ]; /* serial of the live link of a pair, or of the last */
byte linkOld[NQ]; /* 1 + parity of the link before, while D may still read from it */

bool rAlive = true, rGone; /* rGone: it does not come back */
bool rWel[NN], rLost[NN];
byte rEpoch[NN] = NONE;
mtype rS[NREQ];
byte rAtt[NREQ], rLast[NREQ], rOld[NREQ], rD[NREQ] = NONE, rP[NREQ] = NONE, rGid[NREQ], rMis[NREQ], rOut[NREQ], rBase[NREQ];
byte rFail[NREQ], rHand[NREQ];
bool rEnd[NREQ];
bool rTold[NREQ], rPtold[NREQ], rShip[NREQ], rUnv[NREQ], rProg[NREQ];

/* decode node d, request r: i = d * NREQ + r */
#define DI (ND * NREQ)
mtype dS[DI], dG[DI];
byte dAtt[DI], dBase[DI], dGid[DI], dLis[DI], dLan[DI], dCnt[DI], dPos[DI], dB0[DI], dB1[DI], dB2[DI], dBk[DI], dLk[DI], dCc[DI];
byte dOa[DI], dOf[DI], dOt[DI], dCan[DI], dTurn[DI]; /* dTurn: of the OPEN that has the grant */
bool dCw[DI], dIn[DI];
byte dSerial[ND], dBook[ND];
short dCom[ND]; /* grants that were committed, by bit: the tombstones */
mtype kS[ND * DPOOL];
byte kPin[ND * DPOOL], kUse[ND * DPOOL], kName[ND * DPOOL], kC[ND * DPOOL * LAYERS];
/* the landing copy under way, and the engine step under way */
byte lR[ND], lBlk[ND], lPg[ND], lC[ND], lGid[ND];
byte sR[ND], sBase[ND], sB0[ND], sB1[ND], sB2[ND];

/* prefill node p, request r: j = p * NREQ + r */
#define PI (NP * NREQ)
mtype pS[PI], pT[PI];
byte pAtt[PI], pGid[PI], pMis[PI], pD[PI], pEp[PI], pBase[PI], pProg[PI], pSent[PI], pOa[PI], pOt[PI], pCan[PI];
bool pSaid[PI], pHad[PI]; /* Commit said; had a link */
byte fR[NP], fPg[NP], fLink[NP], fGid[NP], fD[NP], fC[NP]; /* the page being sent */
bool fValid[NP];

#if SUSPECTS
byte eAtt[PI], ePg[PI]; /* attempt that is in the step of engine p, 0: none; the block it is at */
bool eSaid[NP]; /* the last list named somebody */
bool pAlone[PI]; /* said with its Prefill: nobody shares its steps */
byte rNote[PI], rNoteAtt[PI]; /* 1 + block of request r that p's last Prefilling named */
byte rDeaths[NREQ], rPlace[NREQ]; /* deaths that count, and the place all of them were at */
bool rRuns[NREQ]; /* Started was heard of this attempt */
byte truth[NREQ]; /* deaths that could have been its own, up to 3: what those that count are judged by */
byte kills; /* engines that died of the poison */
hidden byte old[NREQ], oldAtt[NREQ];
#define DEATHS(r) rDeaths[r]
#define RUNS(r, yes) rRuns[r] = yes
#if NP == 1
#define NO_NOTE(r) rNote[r] = 0; rNoteAtt[r] = 0
#else
#define NO_NOTE(r) rNote[r] = 0; rNoteAtt[r] = 0; rNote[NREQ + (r)] = 0; rNoteAtt[NREQ + (r)] = 0
#endif
#define CLEARED(r) rDeaths[r] = 0; rPlace[r] = 0; NO_NOTE(r)
#define LAST_ONE(r) ((rDeaths[r] > 0 && rFail[r] + rDeaths[r] + 1 >= ATTEMPTS_MAX && OK(41)) -> 64 : 0) /* mutant 41: the last attempt shares its steps */
#define ITS_OWN(r) truth[r] = (truth[r] < 3 -> truth[r] + 1 : 3)
#else
#define DEATHS(r) 0
#define RUNS(r, yes) skip
#define CLEARED(r) skip
#define LAST_ONE(r) 0
#endif
hidden byte t, k, x, y, r, a, i, j, b, n, m, q, c, u, v;
hidden int room;
hidden byte flag, good, listed, back, same;

/* ---------------------------------------------------------------- moves, as the tables have them */
#define MOVE(from, to, event) || (kS[blk] == B_##from && dest == B_##to)
inline block_move(blk, dest) {
  assert(false
#include "../../kvcache/src/block_moves.h"
  );
  kS[blk] = dest;
}
#undef MOVE
#define MOVE(from, to, event) || (dG[rec] == RX_##from && dest == RX_##to)
inline grant_move(rec, dest) {
  assert(false
#include "../../kvtransfer/src/grant_moves.h"
  );
  dG[rec] = dest;
}
#undef MOVE
#define MOVE(from, to, event) || (pT[rec] == TX_##from && dest == TX_##to)
inline handoff_move(rec, dest) {
  assert(false
#include "../../kvtransfer/src/handoff_moves.h"
  );
  pT[rec] = dest;
}
#undef MOVE
#define MOVE(from, to, event) || (dS[rec] == REQ_##from && dest == REQ_##to)
inline request_move(rec, dest) {
  assert(false
#include "../../node/core/src/request_moves.h"
  );
  dS[rec] = dest;
}
#undef MOVE
#define MOVE(from, to, event) || (pS[rec] == REQ_##from && dest == REQ_##to)
inline prompt_move(rec, dest) {
  assert(false
#include "../../node/core/src/request_moves.h"
  );
  pS[rec] = dest;
}
#undef MOVE
#define MOVE(from, to, event) || (rS[req] == LEG_##from && dest == LEG_##to)
inline leg_move(req, dest) {
  assert(false
#include "../../router/core/src/leg_moves.h"
  );
  rS[req] = dest;
  rUnv[req] = false;
}
#undef MOVE

#define MORE(r) slack[r] = (rEnd[r] == 0 && slack[r] < 3 -> slack[r] + 1 : slack[r])
#if NREQ == 1
#define COST MORE(0)
#elif NREQ == 2
#define COST MORE(0); MORE(1)
#else
#define COST MORE(0); MORE(1); MORE(2)
#endif
inline flush4(ch) {
  do
  :: len(ch) > 0 -> ch ? _, _, _, _
  :: else -> break
  od;
  v = 0
}
inline flush3(ch) {
  do
  :: len(ch) > 0 -> ch ? _, _, _
  :: else -> break
  od
}
/* Of a request that has ended the router hears only what makes it say Cancel (late): all else is dropped here at once. */
#define HEARD(kind, key) (rEnd[(key) / 16] == 0 || kind == M_WELCOME || kind == M_GRANTED || kind == M_QUEUED || kind == M_STARTED || kind == M_PREFILLING)
inline say(node, kind, key, one, two) {
  if
  :: nodeUp[node] && up[node] && HEARD(kind, key) -> toR[node] ! kind, key, one, two
  :: else /* it was cut: the node does not know yet, its words are lost */
  fi
}

/* ---------------------------------------------------------------- pool of a decode node (kvcache) */
inline free_block(blk) {
  block_move(blk, B_FREE);
  kName[blk] = 0;
  for (v : 0 .. LAYERS - 1) { kC[(blk) * LAYERS + v] = 0; } /* whoever still reads it finds nothing of his */
  assert(OK(9)) /* I3: its generation changes with it; nobody here reads one, so a parity would only double the states. Mutant 9: it does not */
}
inline settle_block(blk) {
  if
  :: kPin[blk] == 0 && (kUse[blk] == 0 || MUT(1)) && kS[blk] != B_FREE && kName[blk] == 0 -> free_block(blk) /* mutant 1: free while in use */
  :: else
  fi
}
inline unpin(blk) {
  assert(kPin[blk] > 0);
  kPin[blk]--;
  settle_block(blk)
}
inline end_use(blk) {
  assert(kUse[blk] > 0); /* I3 */
  kUse[blk]--;
  settle_block(blk)
}
#define EVICTABLE(blk) (kName[blk] != 0 && kPin[blk] == 0 && kUse[blk] == 0)
inline count_room(d) {
  room = 0 - dBook[d];
  for (u : d * DPOOL .. d * DPOOL + DPOOL - 1) {
    if
    :: kS[u] == B_FREE || EVICTABLE(u) -> room++
    :: else
    fi
  }
}
inline check_room(d) {
  count_room(d);
  assert(room >= 0) /* I1 */
}
/* Spends one booked unit; c: the block. Which of the free ones is nobody's business: block `near`, so that states differ in no names. */
inline take(d, near) {
  assert(dBook[d] > 0);
  c = NONE;
  for (u : d * DPOOL .. d * DPOOL + DPOOL - 1) {
    if
    :: kS[u] == B_FREE && (c == NONE || u == d * DPOOL + (near) % DPOOL) -> c = u
    :: else
    fi
  }
  for (u : d * DPOOL .. d * DPOOL + DPOOL - 1) {
    if
    :: (c == NONE && EVICTABLE(u)) || (MUT(10) && kName[u] != 0 && kUse[u] == 0) -> c = u /* mutant 10: a pinned block is evicted */
    :: else
    fi
  }
  assert(c != NONE); /* I1: booked room is there */
  assert(kPin[c] == 0); /* I3 */
  if
  :: kS[c] != B_FREE -> free_block(c)
  :: else
  fi;
  block_move(c, B_FILLING);
  kPin[c] = 1;
  dBook[d]--
}

/* ---------------------------------------------------------------- decode node */
inline gone(d, rec) { /* the peer of an open grant is told */
  if
  :: dG[rec] == RX_OPEN && dLk[rec] != 0 && linkUp[(d) * NP + (dLk[rec] - 1) / 2] && linkN[(d) * NP + (dLk[rec] - 1) / 2] % 2 == (dLk[rec] - 1) % 2 ->
    dp[(d) * NP + (dLk[rec] - 1) / 2] ! F_GONE, dGid[rec], 0
  :: else
  fi
}
inline drop_block(slot) {
  if
  :: slot != 0 -> b = slot - 1; slot = 0; unpin(b)
  :: else
  fi
}
inline d_release(d, rec) {
  if
  :: dS[rec] == REQ_GRANTED -> gone(d, rec)
  :: else
  fi;
  if
  :: dG[rec] != RX_FREE -> grant_move(rec, RX_FREE)
  :: else
  fi;
  if
  :: OK(24) -> dBook[d] = dBook[d] - dBk[rec] /* mutant: booked room is not given back */
  :: else
  fi;
  dBk[rec] = 0;
  drop_block(dB2[rec]);
  drop_block(dB1[rec]);
  drop_block(dB0[rec]);
  request_move(rec, REQ_FREE);
  dAtt[rec] = 0; dBase[rec] = 0; dGid[rec] = 0; dLis[rec] = 0; dLan[rec] = 0; dCnt[rec] = 0; dPos[rec] = 0;
  dLk[rec] = 0; dTurn[rec] = 0; dCc[rec] = 0; dCw[rec] = false; dIn[rec] = false
}
/* A grant's name, fresh: nobody has opened it, nothing of it is counted. */
inline new_grant(d, rec, mask) {
  dSerial[d]++;
  assert(dSerial[d] < 15);
  dGid[rec] = dSerial[d];
  dLis[rec] = mask;
  dCnt[rec] = 0;
  dLk[rec] = 0;
  dTurn[rec] = 0;
  dCw[rec] = false;
  grant_move(rec, RX_OFFERED);
  say(d, M_GRANTED, KEY(rec % NREQ, dAtt[rec]), dGid[rec] * 16 + mask, 0)
}
/* good: room was found; hits are pinned, the rest is booked, the grant is offered. */
inline admit(d, rec) {
  b = NONE;
  for (u : d * DPOOL .. d * DPOOL + DPOOL - 1) {
    if
    :: kName[u] == WANT0(rec % NREQ) -> b = u
    :: else
    fi
  }
  count_room(d);
  n = NBLK - (b == NONE -> 0 : 1);
  m = ((b != NONE && EVICTABLE(b) && OK(14)) -> 1 : 0); /* mutant 14: a hit is pinned without room for it */
  good = (room >= n + m);
  if
  :: good ->
    if
    :: b != NONE -> kPin[b]++; dB0[rec] = b + 1
    :: else
    fi;
    dBook[d] = dBook[d] + n;
    dBk[rec] = n;
    request_move(rec, REQ_GRANTED);
    listed = (b == NONE -> MASKALL : MASKALL - MASK0);
    new_grant(d, rec, listed);
    check_room(d)
  :: else
  fi
}
inline on_reserve(d) { /* r, a; x: output tokens that are part of the work */
  i = d * NREQ + r;
  if
  :: a <= dCan[i] -> skip
  :: else ->
    flag = true; /* to be made new */
    if
    :: dS[i] == REQ_FREE -> skip
    :: dS[i] != REQ_FREE && a < dAtt[i] && OK(16) -> say(d, M_STALE, KEY(r, a), 0, 0); flag = false /* mutant 16: a lower attempt replaces */
    :: dS[i] != REQ_FREE && a == dAtt[i] ->
      flag = false;
      if
      :: dS[i] == REQ_QUEUED -> say(d, M_QUEUED, KEY(r, a), 0, 0)
      :: dS[i] == REQ_GRANTED && OK(35) -> say(d, M_GRANTED, KEY(r, a), dGid[i] * 16 + dLis[i], 0)
      :: dS[i] == REQ_GRANTED && MUT(35) -> /* mutant 35: the answer said again lists every block, also those that stayed */
        listed = ((dLis[i] & MASK0) == 0 && kS[dB0[i] - 1] == B_SEALED -> MASKALL - MASK0 : MASKALL);
        say(d, M_GRANTED, KEY(r, a), dGid[i] * 16 + listed, 0)
      :: else -> say(d, M_STARTED, KEY(r, a), 0, 0)
      fi
    :: dS[i] == REQ_DECODE && a > dAtt[i] -> say(d, M_ALREADY, KEY(r, a), dAtt[i], dPos[i]); flag = false
    :: dS[i] == REQ_GRANTED && a > dAtt[i] && (x == dBase[i] || MUT(25)) -> /* mutant 25: landed pages stay though there are more tokens */
      flag = false;
      gone(d, i);
      dAtt[i] = a;
      dBase[i] = x;
      /* listed anew: blocks that are not whole */
      m = 0;
      if
      :: (dLis[i] & MASK0) != 0 && (dLan[i] & MASK0) != MASK0 -> m = m | MASK0
      :: else
      fi;
      if
      :: (dLan[i] & (MASKALL - MASK0)) != (MASKALL - MASK0) -> m = m | (MASKALL - MASK0)
      :: else
      fi;
      new_grant(d, i, m)
    :: else -> d_release(d, i)
    fi;
    if
    :: flag ->
      dAtt[i] = a;
      dBase[i] = x;
      request_move(i, REQ_QUEUED); /* words of the attempt before stay until it makes tokens of its own */
      admit(d, i);
      if
      :: !good -> say(d, M_QUEUED, KEY(r, a), 0, 0)
      :: else
      fi
    :: else
    fi
  fi
}
inline on_cancel(d) {
  i = d * NREQ + r;
  if
  :: dCan[i] < a -> dCan[i] = a
  :: else
  fi;
  if
  :: dS[i] != REQ_FREE && (dAtt[i] <= a || MUT(4)) -> d_release(d, i) /* mutant 4: released for a cancel of another attempt */
  :: else
  fi
}
inline on_hello(d) { /* a: attempt that R has here, 0: none; x: the one before it; y: next position */
  i = d * NREQ + r;
  nodeUp[d] = true;
  if
  :: r == 0 -> say(d, M_WELCOME, 0, epoch[d], 0)
  :: else
  fi;
  if
  :: dS[i] != REQ_FREE && dAtt[i] != a && dAtt[i] != x && OK(27) -> /* mutant 27: what R does not list lives on */
    if
    :: dOa[i] == dAtt[i] || MUT(44) -> dOa[i] = 0; dOf[i] = 0; dOt[i] = 0 /* mutant 44: words of an attempt that is listed go with it */
    :: else
    fi;
    d_release(d, i)
  :: else
  fi;
  flag = (dOa[i] != 0 && dOt[i] > y); /* tokens that R has not got */
  if
  :: flag && OK(31) && (dOa[i] == a || dOa[i] == x) -> /* mutant 31: tokens are not sent again */
    for (u : y .. dOt[i] - 1) {
      if
      :: u >= dOf[i] -> toR[d] ! M_TOKEN, KEY(r, dOa[i]), u, 0
      :: else
      fi
    }
  :: else
  fi;
  if
  :: a != 0 && dAtt[i] != a && !flag && OK(21) -> say(d, M_FAILED, KEY(r, a), WHY_GONE, 0) /* mutant 21: a listed request that is gone is not told */
  :: else
  fi;
  if
  :: x != 0 && dAtt[i] != x && !flag && OK(21) -> say(d, M_FAILED, KEY(r, x), WHY_GONE, 0)
  :: else
  fi
}
inline emit(d, rec) { /* the token at dPos of this attempt */
  if
  :: dOa[rec] != dAtt[rec] -> dOa[rec] = dAtt[rec]; dOf[rec] = dPos[rec]
  :: else
  fi;
  say(d, M_TOKEN, KEY(rec % NREQ, dAtt[rec]), dPos[rec], 0);
  dPos[rec]++;
  dOt[rec] = dPos[rec]
}
#define RIGHT0(blk, req, layer) (kC[(blk) * LAYERS + (layer)] == WANT0(req))
#define RIGHT1(blk, req, base, layer) (kC[(blk) * LAYERS + (layer)] == WANT1(req, base))
inline start_decoding(d, rec) {
  dBook[d] = dBook[d] - dBk[rec]; /* nothing is left of it: every block has come */
  dBk[rec] = 0;
  request_move(rec, REQ_DECODE);
  grant_move(rec, RX_COMMITTED);
  dCom[d] = dCom[d] | BIT(dGid[rec]);
  grant_move(rec, RX_FREE);
  assert(dB0[rec] != 0 && dB1[rec] != 0);
  b = dB0[rec] - 1;
  if
  :: kS[b] == B_FILLING -> /* seal it, or use its twin */
    c = NONE;
    for (u : d * DPOOL .. d * DPOOL + DPOOL - 1) {
      if
      :: kName[u] == WANT0(rec % NREQ) -> c = u
      :: else
      fi
    }
    block_move(b, B_SEALED);
    if
    :: c != NONE ->
      if
      :: OK(32) -> kPin[c]++ /* mutant 32: the twin is used without a pin */
      :: else
      fi;
      dB0[rec] = c + 1;
      unpin(b)
    :: else -> kName[b] = WANT0(rec % NREQ)
    fi
  :: else
  fi;
  dPos[rec] = dBase[rec];
  dLis[rec] = 0; dLan[rec] = 0; dCnt[rec] = 0; dLk[rec] = 0; dTurn[rec] = 0; dCc[rec] = 0; dCw[rec] = false;
  say(d, M_STARTED, KEY(rec % NREQ, dAtt[rec]), 0, 0);
  emit(d, rec)
}
/* q: the link's pair, m: its parity. What goes back on a link that is not live any more is lost. */
inline reply(d, kind, gid, mask) {
  if
  :: linkUp[q] && linkN[q] % 2 == m -> dp[q] ! kind, gid, mask
  :: else
  fi
}
inline try_commit(d, rec) {
  if
  :: lR[d] == rec % NREQ + 1 && OK(12) -> dCw[rec] = true /* judged when the landing copy ends */
  :: else ->
    dCw[rec] = false;
    if
    :: (dCnt[rec] & dLan[rec] & dLis[rec]) != dLis[rec] && OK(12) && dLk[rec] != 0 -> /* mutant 12: commit overtakes a page */
      q = d * NP + (dLk[rec] - 1) / 2; m = (dLk[rec] - 1) % 2;
      reply(d, F_MISSING, dGid[rec], dLis[rec] - (dCnt[rec] & dLan[rec] & dLis[rec]))
    :: (dCnt[rec] & dLan[rec] & dLis[rec]) != dLis[rec] && OK(12) && dLk[rec] == 0 -> skip
    :: else ->
      if
      :: MUT(12) && (dB0[rec] == 0 || dB1[rec] == 0) -> skip
      :: else ->
        assert(dCc[rec] == dLis[rec] || MUT(12)); /* both sides mean the same pages */
        if
        :: dLk[rec] != 0 -> q = d * NP + (dLk[rec] - 1) / 2; m = (dLk[rec] - 1) % 2; reply(d, F_COMMITTED, dGid[rec], 0)
        :: else
        fi;
        start_decoding(d, rec)
      fi
    fi
  fi
}
inline find_grant(d, gid) { /* i: its record, or NONE */
  i = NONE;
  for (u : d * NREQ .. d * NREQ + NREQ - 1) {
    if
    :: dS[u] == REQ_GRANTED && dGid[u] == gid -> i = u
    :: else
    fi
  }
}
inline on_open(d) { /* k: grant, x: request and attempt, y: epoch the secret belongs to, turn (the link's serial) */
  c = y % 16;
  y = y / 16;
  find_grant(d, k);
  if
  :: i == NONE && HAS(dCom[d], k) && (y == epoch[d] || MUT(3)) -> reply(d, F_COMMITTED, k, 0)
  :: i == NONE && !(HAS(dCom[d], k) && (y == epoch[d] || MUT(3))) -> reply(d, F_GONE, k, 0)
  :: else ->
    if
    :: !((x == KEY(i % NREQ, dAtt[i]) && y == epoch[d]) || MUT(3)) -> reply(d, F_GONE, k, 0) /* mutant 3: neither epoch nor proof is checked */
    :: ((x == KEY(i % NREQ, dAtt[i]) && y == epoch[d]) || MUT(3)) && c < dTurn[i] && OK(37) -> skip /* late on a link that was left */
    :: else -> /* mutant 37: no turn */
      assert(!(dG[i] == RX_OPEN && dLk[i] == 1 + (q % NP) * 2 + linkN[q] % 2 && linkUp[q] && m != linkN[q] % 2)); /* never taken from the live link */
      grant_move(i, RX_OPEN);
      dLk[i] = 1 + (q % NP) * 2 + m;
      dTurn[i] = c;
      reply(d, F_OPENED, k, 0)
    fi
  fi
}
inline begin_landing(d) { /* i: record, x: page, y: what it holds */
  n = x / LAYERS;
  if
  :: MUT(11) && (dLis[i] & MASK0) == 0 -> n = 0 /* mutant 11: placed by counting the missing blocks, not by position */
  :: else
  fi;
  if
  :: n == 0 && dB0[i] == 0 -> take(d, i % NREQ); dB0[i] = c + 1; dBk[i]--
  :: n == 1 && dB1[i] == 0 -> take(d, i % NREQ + 1); dB1[i] = c + 1; dBk[i]--
  :: else
  fi;
  lBlk[d] = (n == 0 -> dB0[i] : dB1[i]) - 1;
  kUse[lBlk[d]]++;
  lR[d] = i % NREQ + 1; lPg[d] = x; lC[d] = y; lGid[d] = k;
  if
  :: MUT(2) -> dLan[i] = dLan[i] | BIT(x); dCnt[i] = dCnt[i] | BIT(x) /* mutant 2: counted before the copy is checked */
  :: else
  fi;
  check_room(d)
}
inline on_page(d) { /* k: grant, x: page, y: what it holds */
  find_grant(d, k);
  if
  :: MUT(8) && i == NONE -> /* mutant 8: a grant is used after it was revoked */
    for (u : d * NREQ .. d * NREQ + NREQ - 1) {
      if
      :: dS[u] == REQ_GRANTED -> i = u
      :: else
      fi
    }
  :: else
  fi;
  if
  :: i == NONE -> skip
  :: i != NONE && MUT(8) && HAS(dLis[i], x) && !HAS(dLan[i], x) -> begin_landing(d)
  :: i != NONE && !(MUT(8) && HAS(dLis[i], x) && !HAS(dLan[i], x)) && dG[i] == RX_OPEN && dLk[i] == 1 + (q % NP) * 2 + m && HAS(dLis[i], x) ->
    if
    :: HAS(dLan[i], x) && OK(13) -> dCnt[i] = dCnt[i] | BIT(x) /* a repeat: counted under this grant, never written again */
    :: else -> begin_landing(d) /* mutant 13: a landed page is written again */
    fi
  :: else
  fi
}
inline on_landed(d, fine) {
  i = d * NREQ + lR[d] - 1;
  n = lBlk[d];
  assert(kS[n] == B_FILLING && kUse[n] > 0); /* I3, I4: sealed or free blocks are not written */
  assert(!(dS[i] == REQ_DECODE && (dB0[i] == n + 1 || dB1[i] == n + 1))); /* I4: nothing changes under a decode */
  if
  :: dS[i] == REQ_GRANTED && (dB0[i] == n + 1 || dB1[i] == n + 1) && OK(2) -> assert(!HAS(dLan[i], lPg[d])) /* I4 */
  :: else
  fi;
  kC[n * LAYERS + lPg[d] % LAYERS] = (fine -> lC[d] : 0);
  flag = (dS[i] == REQ_GRANTED && (dB0[i] == n + 1 || dB1[i] == n + 1));
  x = lPg[d];
  good = (lGid[d] == dGid[i]);
  lR[d] = 0; lBlk[d] = 0; lPg[d] = 0; lC[d] = 0; lGid[d] = 0;
  end_use(n);
  if
  :: flag ->
    if
    :: fine ->
      dLan[i] = dLan[i] | BIT(x);
      if
      :: good && HAS(dLis[i], x) -> dCnt[i] = dCnt[i] | BIT(x)
      :: else
      fi
    :: else
    fi;
    if
    :: dCw[i] -> try_commit(d, i)
    :: else
    fi
  :: else
  fi
}
inline on_commit(d) {
  find_grant(d, k);
  if
  :: i == NONE && HAS(dCom[d], k) ->
    if
    :: MUT(5) -> /* mutant 5: a commit counted twice hands its blocks over twice */
      for (u : d * NREQ .. d * NREQ + NREQ - 1) {
        if
        :: dS[u] == REQ_DECODE && dGid[u] == k -> kPin[dB1[u] - 1]++
        :: else
        fi
      }
    :: else
    fi;
    reply(d, F_COMMITTED, k, 0)
  :: i == NONE && !HAS(dCom[d], k) -> reply(d, F_GONE, k, 0)
  :: i != NONE && dG[i] == RX_OPEN && dLk[i] == 1 + (q % NP) * 2 + m -> dCc[i] = x; try_commit(d, i)
  :: else
  fi
}
inline lost(d, rec) { /* the grant ended without its commit */
  grant_move(rec, RX_LOST);
  say(d, M_FAILED, KEY(rec % NREQ, dAtt[rec]), WHY_LOST, 0);
  d_release(d, rec)
}
inline d_frame(d) {
  if
  :: t == F_OPEN -> on_open(d)
  :: t == F_PAGE -> on_page(d)
  :: t == F_COMMIT -> on_commit(d)
  :: t == F_CANCEL ->
    find_grant(d, k);
    if
    :: i != NONE && dG[i] == RX_OPEN && dLk[i] == 1 + (q % NP) * 2 + m ->
      dLk[i] = 0;
      if
      :: MUT(23) -> lost(d, i) /* mutant 23: says Failed though the sender has told the router */
      :: else -> grant_move(i, RX_LOST); d_release(d, i)
      fi
    :: else
    fi
  fi
}
inline d_message(d) {
  r = k / 16; a = k % 16;
  if
  :: t == M_HELLO -> /* it is one message: each request has its part */
    on_hello(d);
    do
    :: toN[d] ? [M_HELLO, _, _, _] -> toN[d] ? t, k, x, y; r = k / 16; a = k % 16; on_hello(d)
    :: else -> break
    od
  :: t == M_RESERVE -> on_reserve(d)
  :: t == M_CANCEL -> on_cancel(d)
  :: else
  fi;
  check_room(d)
}
/* D knows that a link is over: what was in it is lost, its grants belong to no link until opened again. */
inline close_old(pair) {
  c = linkOld[pair] - 1;
  flush4(pd[(pair) * 2 + c]);
  for (u : ((pair) / NP) * NREQ .. ((pair) / NP) * NREQ + NREQ - 1) {
    if
    :: dG[u] == RX_OPEN && dLk[u] == 1 + ((pair) % NP) * 2 + c -> dLk[u] = 0
    :: else
    fi
  }
  linkOld[pair] = 0
}
inline step_check(d) { /* I4, I3: what the engine reads is this request's, whole and of this attempt */
  for (v : 0 .. LAYERS - 1) {
    assert(RIGHT0(sB0[d] - 1, sR[d] - 1, v));
    assert(RIGHT1(sB1[d] - 1, sR[d] - 1, sBase[d], v))
  }
}
inline step_begin(d, req) {
  i = d * NREQ + req;
  flag = true;
  if
  :: GROW && dPos[i] == NTOK - 1 && dB2[i] == 0 ->
    count_room(d);
    if
    :: room >= 1 -> dBook[d]++; take(d, 2); dB2[i] = c + 1
    :: else -> /* I7: the youngest one gives its room, which may be this one */
      flag = false;
      j = i;
      for (n : d * NREQ .. d * NREQ + NREQ - 1) {
        if
        :: dS[n] == REQ_DECODE && n > j -> j = n
        :: else
        fi
      }
      if
      :: OK(33) -> say(d, M_PREEMPTED, KEY(j % NREQ, dAtt[j]), dPos[j], 0); d_release(d, j) /* mutant 33: nobody is preempted */
      :: else
      fi
    fi
  :: else
  fi;
  if
  :: flag ->
    sR[d] = req + 1; sBase[d] = dBase[i]; sB0[d] = dB0[i]; sB1[d] = dB1[i]; sB2[d] = dB2[i];
    kUse[sB0[d] - 1]++;
    kUse[sB1[d] - 1]++;
    if
    :: sB2[d] != 0 -> kUse[sB2[d] - 1]++
    :: else
    fi;
    dIn[i] = true;
    step_check(d)
  :: else
  fi;
  check_room(d)
}
inline step_end(d) {
  step_check(d);
  i = d * NREQ + sR[d] - 1;
  if
  :: sB2[d] != 0 -> n = sB2[d] - 1; end_use(n)
  :: else
  fi;
  n = sB1[d] - 1; end_use(n);
  n = sB0[d] - 1; end_use(n);
  sR[d] = 0; sBase[d] = 0; sB0[d] = 0; sB1[d] = 0; sB2[d] = 0;
  if
  :: dIn[i] ->
    dIn[i] = false;
    emit(d, i);
    if
    :: dPos[i] == NTOK -> /* ended by itself: a Reserve of it that comes once more takes no room; mutant 46: it does */
      dCan[i] = ((dAtt[i] > dCan[i] && OK(46)) -> dAtt[i] : dCan[i]);
      d_release(d, i)
    :: else
    fi
  :: else
  fi;
  check_room(d)
}
#define AVAILABLE(blk) ((kS[blk] == B_FREE || EVICTABLE(blk)) -> 1 : 0)
#define NAMED(blk, req) (kName[blk] == WANT0(req))
#define FIRST_OF(d) ((d) * DPOOL)
#if DPOOL == 2
#define OVER_POOL(what, d, op) (what(FIRST_OF(d)) op what(FIRST_OF(d) + 1))
#elif DPOOL == 3
#define OVER_POOL(what, d, op) (what(FIRST_OF(d)) op what(FIRST_OF(d) + 1) op what(FIRST_OF(d) + 2))
#elif DPOOL == 4
#define OVER_POOL(what, d, op) (what(FIRST_OF(d)) op what(FIRST_OF(d) + 1) op what(FIRST_OF(d) + 2) op what(FIRST_OF(d) + 3))
#else
#error DPOOL is 2, 3 or 4
#endif
#define ROOM(d) (OVER_POOL(AVAILABLE, d, +) - dBook[d])
#define HIT_OF(blk) NAMED(blk, rq)
#define HIT_IDLE_OF(blk) (NAMED(blk, rq) && EVICTABLE(blk) && OK(14))
#define FITS(d) (ROOM(d) >= NBLK - (OVER_POOL(HIT_OF, d, ||) -> 1 : 0) + (OVER_POOL(HIT_IDLE_OF, d, ||) -> 1 : 0))
#define GROWS(rec) (GROW && dPos[rec] == NTOK - 1 && dB2[rec] == 0)
#define FAULT(kind) (faults > 0 && c_expr { kinds & (kind) })
#define CAN_SAY(node) (len(toR[node]) <= SC - 4)
#define CAN_ANSWER(d) (len(dp[(d) * NP]) < LC - 1 && len(dp[(d) * NP + NP - 1]) < LC - 1)


/* Events of decode node d. */
proctype Decode(byte d) {
end:
  do
  :: d_step { alive[d] && len(toN[d]) > 0 && CAN_SAY(d) && CAN_ANSWER(d) -> toN[d] ? t, k, x, y; d_message(d) }
  :: d_step { alive[d] && len(toN[d]) > 0 && FAULT(KIND_DUP) && CAN_SAY(d) && CAN_ANSWER(d) && !(toN[d] ? [M_HELLO, _, _, _]) ->
      faults--; COST; toN[d] ? t, k, x, y; toN[d] ! t, k, x, y; d_message(d) } /* it comes once more, after others */
  :: d_step { alive[d] && lR[d] != 0 && CAN_SAY(d) && CAN_ANSWER(d) -> on_landed(d, true); check_room(d) }
  :: d_step { alive[d] && lR[d] != 0 && FAULT(KIND_CORRUPT) && CAN_SAY(d) && CAN_ANSWER(d) -> faults--; COST; on_landed(d, false); check_room(d) }
  :: d_step { alive[d] && sR[d] != 0 && CAN_SAY(d) -> step_end(d) }
  :: d_step { alive[d] && !up[d] && nodeUp[d] -> nodeUp[d] = false }
  od
}
/* Events of request rq at decode node d. */
#define REC (d * NREQ + rq)
proctype Held(byte d; byte rq) {
end:
  do
  :: d_step { alive[d] && dS[REC] == REQ_QUEUED && dB0[REC] == 0 && CAN_SAY(d) && FITS(d) -> i = REC; admit(d, i) }
  :: d_step { alive[d] && dS[REC] == REQ_QUEUED && FAULT(KIND_TIME) && CAN_SAY(d) ->
      faults--; COST; i = REC; say(d, M_FAILED, KEY(rq, dAtt[i]), WHY_AGAIN, 0); d_release(d, i) }
  :: d_step { alive[d] && dS[REC] == REQ_DECODE && sR[d] == 0 && CAN_SAY(d) && (!GROWS(REC) || ROOM(d) >= 1 || OK(33)) -> step_begin(d, rq) }
  /* A grant expires: at once when nobody renews it, else it takes a clock that runs wild. */
  :: d_step { alive[d] && dS[REC] == REQ_GRANTED && CAN_SAY(d) && CAN_ANSWER(d) &&
        ((dG[REC] == RX_OFFERED && (!nodeUp[d] || MUT(7))) || (dG[REC] == RX_OPEN && dLk[REC] == 0)) -> /* mutant 7: not renewed while P queues */
      if
      :: !nodeUp[d] -> COST /* no blip: the session was away for longer than the lease */
      :: else
      fi;
      i = REC; lost(d, i) }
  :: d_step { alive[d] && dS[REC] == REQ_GRANTED && FAULT(KIND_TIME) && CAN_SAY(d) && CAN_ANSWER(d) ->
      faults--; COST; i = REC; gone(d, i); lost(d, i) }
  /* Grace of a router that is not there. */
  :: d_step { alive[d] && !nodeUp[d] && (dS[REC] != REQ_FREE || dOa[REC] != 0) && OK(28) && CAN_ANSWER(d) -> /* mutant 28: no grace, for ever */
      COST;
      i = REC; dOa[i] = 0; dOf[i] = 0; dOt[i] = 0;
      if
      :: dS[i] != REQ_FREE -> d_release(d, i)
      :: else
      fi }
  od
}
/* What comes over the link of prefill node p to decode node d. */
#define PAIR (d * NP + p)
#define WAITS(d, p, req) (pS[(p) * NREQ + (req)] != REQ_FREE && pT[(p) * NREQ + (req)] == TX_WAITING && pD[(p) * NREQ + (req)] == d && (pEp[(p) * NREQ + (req)] == epoch[d] || MUT(3)))
#if NREQ == 1
#define WANTED(d, p) WAITS(d, p, 0)
#elif NREQ == 2
#define WANTED(d, p) (WAITS(d, p, 0) || WAITS(d, p, 1))
#else
#define WANTED(d, p) (WAITS(d, p, 0) || WAITS(d, p, 1) || WAITS(d, p, 2))
#endif
#define D_FRAME(par) \
  :: d_step { alive[d] && len(pd[PAIR * 2 + par]) > 0 && CAN_SAY(d) && CAN_ANSWER(d) && \
        !(lR[d] != 0 && pd[PAIR * 2 + par] ? [F_PAGE, _, _, _]) -> \
      pd[PAIR * 2 + par] ? t, k, x, y; q = PAIR; m = par; d_frame(d); check_room(d) } \
  :: d_step { alive[d] && len(pd[PAIR * 2 + par]) > 0 && FAULT(KIND_DUP) && CAN_SAY(d) && CAN_ANSWER(d) && \
        !(lR[d] != 0 && pd[PAIR * 2 + par] ? [F_PAGE, _, _, _]) -> \
      faults--; COST; pd[PAIR * 2 + par] ? t, k, x, y; pd[PAIR * 2 + par] ! t, k, x, y; q = PAIR; m = par; d_frame(d); check_room(d) }
proctype Link(byte d; byte p) {
end:
  do
  D_FRAME(0)
  D_FRAME(1)
  :: d_step { linkOld[PAIR] != 0 -> q = PAIR; close_old(q) }
  /* P calls again. The node at that address says its epoch; hand-offs for another one have lost their peer. */
  :: d_step { !linkUp[PAIR] && alive[d] && alive[ND + p] && WANTED(d, p) && linkOld[PAIR] != 1 + (linkN[PAIR] + 1) % 2 ->
      linkN[PAIR]++; linkUp[PAIR] = true; assert(len(pd[PAIR * 2 + linkN[PAIR] % 2]) == 0) }
  od
}

/* ---------------------------------------------------------------- prefill node */
#define PQ(rec) (pD[rec] * NP + (rec) / NREQ)
#define PCH(rec) pd[PQ(rec) * 2 + linkN[PQ(rec)] % 2]
inline p_release(rec) {
  if
  :: pT[rec] != TX_WAITING && pT[rec] != TX_FREE && pT[rec] != TX_ENDING && linkUp[PQ(rec)] -> PCH(rec) ! F_CANCEL, pGid[rec], 0, 0
  :: else
  fi;
  p_end(rec)
}
inline p_end(rec) {
  if
  :: pT[rec] != TX_FREE -> handoff_move(rec, TX_ENDING); handoff_move(rec, TX_FREE)
  :: else
  fi;
  if
  :: fR[(rec) / NREQ] == (rec) % NREQ + 1 && MUT(22) -> fValid[(rec) / NREQ] = false /* mutant 22: ends while a page of it is being sent */
  :: else
  fi;
  prompt_move(rec, REQ_FREE);
#if SUSPECTS
  pAlone[rec] = false;
#endif
  pAtt[rec] = 0; pGid[rec] = 0; pMis[rec] = 0; pD[rec] = 0; pEp[rec] = 0; pBase[rec] = 0; pProg[rec] = 0; pSent[rec] = 0; pSaid[rec] = false; pHad[rec] = false
}
inline on_prefill(p) { /* x: grant and missing pages, y: decode node, its epoch, output tokens */
  j = p * NREQ + r;
  if
  :: a <= pCan[j] || (pS[j] != REQ_FREE && a <= pAtt[j]) -> skip
  :: else ->
    if
    :: pS[j] != REQ_FREE -> p_release(j)
    :: else
    fi;
    if
    :: x % 16 == 0 && MUT(34) -> say(ND + p, M_REFUSED, KEY(r, a), 1, 0) /* mutant 34: a grant that lacks no page is called malformed */
    :: else ->
      prompt_move(j, REQ_QUEUED);
      prompt_move(j, REQ_COMPUTE);
      handoff_move(j, TX_WAITING);
      pAtt[j] = a; pGid[j] = x / 16; pMis[j] = x % 16; pD[j] = (y / 16) % 4; pEp[j] = (y / 4) % 4; pBase[j] = y % 4;
#if SUSPECTS
      pAlone[j] = (y >= 64)
#endif
    fi
  fi
}
#if SUSPECTS
#if NREQ == 1
#define IN_STEP(p) (eAtt[p] != 0)
#define WORKS(p) (pS[p] == REQ_COMPUTE)
#elif NREQ == 2
#define IN_STEP(p) (eAtt[(p) * 2] != 0 || eAtt[(p) * 2 + 1] != 0)
#define WORKS(p) (pS[(p) * 2] == REQ_COMPUTE || pS[(p) * 2 + 1] == REQ_COMPUTE)
#else
#error SUSPECTS is for one or two requests
#endif
#define POISONED(p) (POISON && eAtt[(p) * NREQ] != 0 && ePg[(p) * NREQ] == 0)
/* What the step is at, or that no prompt is in it; the list takes the place of the one before. */
inline say_prefilling(p) {
  n = 1;
  for (u : p * NREQ .. p * NREQ + NREQ - 1) {
    if
    :: eAtt[u] != 0 -> say(ND + p, M_PREFILLING, KEY(u % NREQ, eAtt[u]), ePg[u], n); n = 0
    :: else
    fi
  }
  if
  :: n == 1 -> say(ND + p, M_PREFILLING, 0, 0, 1)
  :: else
  fi;
  eSaid[p] = (n == 0)
}
#endif
inline on_p_hello(p) {
  j = p * NREQ + r;
  n = ND + p;
  nodeUp[n] = true;
  if
  :: r == 0 -> say(n, M_WELCOME, 0, epoch[n], 0)
  :: else
  fi;
  if
  :: pS[j] != REQ_FREE && pAtt[j] != a && OK(27) ->
    if
    :: pOa[j] == pAtt[j] || MUT(44) -> pOa[j] = 0; pOt[j] = 0
    :: else
    fi;
    p_release(j)
  :: else
  fi;
  flag = (pOa[j] != 0 && pOt[j] > y);
  if
  :: flag && pOa[j] == a && OK(31) -> say(n, M_TOKEN, KEY(r, a), pOt[j] - 1, 0)
  :: else
  fi;
  if
  :: a != 0 && pAtt[j] != a && !flag && OK(21) -> say(n, M_FAILED, KEY(r, a), WHY_GONE, 0)
  :: else
  fi;
#if SUSPECTS
  if
  :: r == NREQ - 1 -> say_prefilling(p)
  :: else
  fi
#endif
}
inline p_message(p) {
  r = k / 16; a = k % 16;
  if
  :: t == M_HELLO ->
    on_p_hello(p);
    do
    :: toN[ND + p] ? [M_HELLO, _, _, _] -> toN[ND + p] ? t, k, x, y; r = k / 16; a = k % 16; on_p_hello(p)
    :: else -> break
    od
  :: t == M_PREFILL -> on_prefill(p)
  :: t == M_CANCEL ->
    j = p * NREQ + r;
    if
    :: pCan[j] < a -> pCan[j] = a
    :: else
    fi;
    if
    :: pS[j] != REQ_FREE && pAtt[j] <= a -> p_release(j)
    :: else
    fi
  :: else
  fi
}
inline p_shipped(rec, fine) {
  say(ND + (rec) / NREQ, M_SHIPPED, KEY((rec) % NREQ, pAtt[rec]), fine, 0);
  p_end(rec)
}
inline p_frame(d, p) { /* t, k: grant, x: pages */
  j = NONE;
  for (u : p * NREQ .. p * NREQ + NREQ - 1) {
    if
    :: pS[u] != REQ_FREE && pGid[u] == k && pD[u] == d && pT[u] != TX_WAITING -> j = u
    :: else
    fi
  }
  if
  :: j == NONE -> skip
  :: j != NONE && t == F_OPENED ->
    if
    :: pT[j] == TX_OPENING -> handoff_move(j, TX_MOVING)
    :: else
    fi
  :: j != NONE && t == F_COMMITTED ->
    if
    :: pSaid[j] -> p_shipped(j, 1)
    :: else -> p_shipped(j, 0) /* a Prefill said again after its hand-off had ended */
    fi
  :: j != NONE && t == F_MISSING ->
    if
    :: pT[j] == TX_COMMITTING -> pSent[j] = pSent[j] & (MASKALL - x); handoff_move(j, TX_MOVING)
    :: else
    fi
  :: j != NONE && t == F_GONE -> p_shipped(j, 0)
  fi
}
#define READY(rec) ((1 << pProg[rec]) - 1)
#define DUE(rec) (pMis[rec] & READY(rec) & (MASKALL - pSent[rec]))
#define FIRST(m) (((m) & 1) -> 0 : (((m) & 2) -> 1 : (((m) & 4) -> 2 : 3)))
#define PROOM(p) (len(pd[(p) * 2]) < LC - 1 && len(pd[(p) * 2 + 1]) < LC - 1 && len(pd[((ND - 1) * NP + (p)) * 2]) < LC - 1 && len(pd[((ND - 1) * NP + (p)) * 2 + 1]) < LC - 1)
inline send_begin(p, rec) {
  fR[p] = (rec) % NREQ + 1;
  fPg[p] = FIRST(DUE(rec));
  fLink[p] = linkN[PQ(rec)];
  fGid[p] = pGid[rec];
  fD[p] = pD[rec];
  fC[p] = (fPg[p] / LAYERS == 0 -> WANT0((rec) % NREQ) : WANT1((rec) % NREQ, pBase[rec]));
  fValid[p] = true
}
inline send_end(p) {
  assert(fValid[p]); /* I3: its memory was his till now */
  q = fD[p] * NP + p;
  j = p * NREQ + fR[p] - 1;
  if
  :: linkUp[q] && linkN[q] == fLink[p] ->
    pd[q * 2 + linkN[q] % 2] ! F_PAGE, fGid[p], fPg[p], fC[p];
    if
    :: pS[j] != REQ_FREE && pGid[j] == fGid[p] && pD[j] == fD[p] -> pSent[j] = pSent[j] | BIT(fPg[p])
    :: else
    fi
  :: else
  fi;
  fR[p] = 0; fPg[p] = 0; fLink[p] = 0; fGid[p] = 0; fD[p] = 0; fC[p] = 0; fValid[p] = false
}
inline cut_session(node) {
  up[node] = false;
  rWel[node] = false;
  flush4(toN[node]);
  flush4(toR[node])
}
inline cut_link(pair) {
  if
  :: linkUp[pair] ->
    if
    :: linkOld[pair] != 0 -> close_old(pair)
    :: else
    fi;
    linkUp[pair] = false;
    linkOld[pair] = 1 + linkN[pair] % 2;
    flush3(dp[pair]);
    for (j : ((pair) % NP) * NREQ .. ((pair) % NP) * NREQ + NREQ - 1) {
      if
      :: pS[j] != REQ_FREE && PQ(j) == pair && pT[j] != TX_WAITING -> handoff_move(j, TX_WAITING)
      :: else
      fi
    }
  :: else
  fi
}
inline crash_decode(d) {
  alive[d] = false;
  epoch[d]++;
  cut_session(d);
  nodeUp[d] = false;
  for (q : d * NP .. d * NP + NP - 1) {
    cut_link(q);
    flush4(pd[q * 2]);
    flush4(pd[q * 2 + 1]);
    linkOld[q] = 0
  }
  for (i : d * NREQ .. d * NREQ + NREQ - 1) {
    dS[i] = REQ_FREE; dG[i] = RX_FREE;
    dAtt[i] = 0; dBase[i] = 0; dGid[i] = 0; dLis[i] = 0; dLan[i] = 0; dCnt[i] = 0; dPos[i] = 0; dB0[i] = 0; dB1[i] = 0; dB2[i] = 0;
    dBk[i] = 0; dLk[i] = 0; dCc[i] = 0; dCw[i] = false; dIn[i] = false; dOa[i] = 0; dOf[i] = 0; dOt[i] = 0; dCan[i] = 0; dTurn[i] = 0
  }
  for (u : d * DPOOL .. d * DPOOL + DPOOL - 1) {
    kS[u] = B_FREE; kPin[u] = 0; kUse[u] = 0; kName[u] = 0;
    for (v : 0 .. LAYERS - 1) { kC[u * LAYERS + v] = 0; }
  }
  dSerial[d] = 0; dBook[d] = 0; dCom[d] = 0;
  lR[d] = 0; lBlk[d] = 0; lPg[d] = 0; lC[d] = 0; lGid[d] = 0;
  sR[d] = 0; sBase[d] = 0; sB0[d] = 0; sB1[d] = 0; sB2[d] = 0
}
inline crash_prefill(p) {
  alive[ND + p] = false;
  epoch[ND + p]++;
  cut_session(ND + p);
  nodeUp[ND + p] = false;
  for (q : 0 .. NQ - 1) {
    if
    :: q % NP == p -> cut_link(q)
    :: else
    fi
  }
  for (j : p * NREQ .. p * NREQ + NREQ - 1) {
    pS[j] = REQ_FREE; pT[j] = TX_FREE;
    pAtt[j] = 0; pGid[j] = 0; pMis[j] = 0; pD[j] = 0; pEp[j] = 0; pBase[j] = 0; pProg[j] = 0; pSent[j] = 0; pOa[j] = 0; pOt[j] = 0;
    pCan[j] = 0; pSaid[j] = false; pHad[j] = false;
#if SUSPECTS
    eAtt[j] = 0; ePg[j] = 0; pAlone[j] = false; eSaid[p] = false
#endif
  }
  fR[p] = 0; fPg[p] = 0; fLink[p] = 0; fGid[p] = 0; fD[p] = 0; fC[p] = 0; fValid[p] = false
}
inline computed(p, rec) {
  pProg[rec]++;
  if
  :: pProg[rec] == NPG ->
    pOa[rec] = pAtt[rec]; pOt[rec] = pBase[rec] + 1;
    say(ND + p, M_TOKEN, KEY((rec) % NREQ, pAtt[rec]), pBase[rec], 0);
    if
    :: pBase[rec] == NTOK - 1 -> p_release(rec) /* the request is over: nothing more is shipped */
    :: else -> prompt_move(rec, REQ_SHIP)
    fi
  :: else
  fi
}
#if SUSPECTS
inline idle(p) {
  if
  :: OK(42) -> say_prefilling(p)
  :: else -> eSaid[p] = false /* mutant 42: nobody says that the engine has nothing to do any more */
  fi
}
inline engine_done(p) {
  for (u : p * NREQ .. p * NREQ + NREQ - 1) {
    if
    :: eAtt[u] != 0 && pS[u] == REQ_COMPUTE && pAtt[u] == eAtt[u] -> computed(p, u)
    :: else
    fi;
    eAtt[u] = 0; ePg[u] = 0
  }
  if
  :: !WORKS(p) -> idle(p)
  :: else
  fi
}
/* The engine dies: whose deaths it may be. Words on their way are lost, so the router may believe what was true before. */
inline deaths_of(p) {
  for (u : p * NREQ .. p * NREQ + NREQ - 1) {
    if
    :: eAtt[u] != 0 || (pS[u] == REQ_COMPUTE && !IN_STEP(p)) || (eSaid[p] && rNote[u] != 0) || (rNote[u] != 0 && (len(toR[ND + p]) > 0 || !up[ND + p] || !nodeUp[ND + p] || !rWel[ND + p])) -> ITS_OWN(u % NREQ)
    :: else
    fi
  }
}
#endif
proctype Prefill(byte p) {
end:
  do
#if SUSPECTS
  :: d_step { alive[ND + p] && IN_STEP(p) && !POISONED(p) && CAN_SAY(ND + p) && PROOM(p) -> engine_done(p) }
  :: d_step { alive[ND + p] && !IN_STEP(p) && !WORKS(p) && eSaid[p] && CAN_SAY(ND + p) -> idle(p) } /* what it was at has been given up between two steps */
  :: d_step { alive[ND + p] && POISONED(p) && up[ND + p] && nodeUp[ND + p] && rWel[ND + p] && len(toR[ND + p]) == 0 -> /* what it said before was heard */
      COST; kills++; assert(kills <= ATTEMPTS_MAX); deaths_of(p); crash_prefill(p); v = 0 }
#if NREQ == 2
  :: d_step { alive[ND + p] && pS[p * 2] == REQ_COMPUTE && pS[p * 2 + 1] == REQ_COMPUTE && !IN_STEP(p) && !pAlone[p * 2] && !pAlone[p * 2 + 1] && CAN_SAY(ND + p) ->
      eAtt[p * 2] = pAtt[p * 2]; ePg[p * 2] = pProg[p * 2]; eAtt[p * 2 + 1] = pAtt[p * 2 + 1]; ePg[p * 2 + 1] = pProg[p * 2 + 1];
      say_prefilling(p); v = 0 }
#endif
#endif
  :: d_step { alive[ND + p] && len(toN[ND + p]) > 0 && CAN_SAY(ND + p) && PROOM(p) -> toN[ND + p] ? t, k, x, y; p_message(p) }
  :: d_step { alive[ND + p] && len(toN[ND + p]) > 0 && FAULT(KIND_DUP) && CAN_SAY(ND + p) && PROOM(p) && !(toN[ND + p] ? [M_HELLO, _, _, _]) ->
      faults--; COST; toN[ND + p] ? t, k, x, y; toN[ND + p] ! t, k, x, y; p_message(p) }
  :: d_step { alive[ND + p] && FAULT(KIND_REFUSE) && toN[ND + p] ? [M_PREFILL, _, _, _] && CAN_SAY(ND + p) ->
      toN[ND + p] ? t, k, x, y; j = p * NREQ + k / 16;
      if
      :: k % 16 <= pCan[j] || pS[j] != REQ_FREE -> skip
      :: else -> faults--; COST; say(ND + p, M_REFUSED, k, 0, 0)
      fi }
  :: d_step { alive[ND + p] && fR[p] != 0 && PROOM(p) -> send_end(p) }
  :: d_step { alive[ND + p] && !up[ND + p] && nodeUp[ND + p] -> nodeUp[ND + p] = false }
#if ND > 1
  :: d_step { alive[ND + p] && len(dp[NP + p]) > 0 && CAN_SAY(ND + p) -> dp[NP + p] ? t, k, x; p_frame(1, p) }
#endif
  :: d_step { alive[ND + p] && len(dp[p]) > 0 && CAN_SAY(ND + p) -> dp[p] ? t, k, x; p_frame(0, p) }
  od
}
#define SHP (p * NREQ + rq)
#define SILENT(rec, req) (len(pd[PQ(rec) * 2]) == 0 && len(pd[PQ(rec) * 2 + 1]) == 0 && len(dp[PQ(rec)]) == 0 && lR[pD[rec]] == 0 && \
  !(dG[pD[rec] * NREQ + req] == RX_OPEN && dGid[pD[rec] * NREQ + req] == pGid[rec] && dLk[pD[rec] * NREQ + req] == 1 + ((rec) / NREQ) * 2 + linkN[PQ(rec)] % 2))
proctype Ship(byte p; byte rq) {
end:
  do
  /* One more page is final; after the last one the first token is sampled. */
#if SUSPECTS
  :: d_step { alive[ND + p] && pS[SHP] == REQ_COMPUTE && !IN_STEP(p) && CAN_SAY(ND + p) ->
      j = SHP; eAtt[j] = pAtt[j]; ePg[j] = pProg[j]; eSaid[p] = true; say(ND + p, M_PREFILLING, KEY(rq, pAtt[j]), pProg[j], 1) }
#else
  :: d_step { alive[ND + p] && pS[SHP] == REQ_COMPUTE && CAN_SAY(ND + p) && PROOM(p) -> j = SHP; computed(p, j) }
#endif
  :: d_step { alive[ND + p] && pS[SHP] != REQ_FREE && pT[SHP] == TX_WAITING && linkUp[PQ(SHP)] && (pEp[SHP] == epoch[pD[SHP]] || MUT(3)) && PROOM(p) ->
      j = SHP; handoff_move(j, TX_OPENING); pHad[j] = true; PCH(j) ! F_OPEN, pGid[j], KEY(rq, pAtt[j]), pEp[j] * 16 + linkN[PQ(j)] }
  /* No link: given up, or its peer is another process now. */
  :: d_step { alive[ND + p] && pS[SHP] != REQ_FREE && pT[SHP] == TX_WAITING && CAN_SAY(ND + p) &&
        ((!linkUp[PQ(SHP)] && (pHad[SHP] || !alive[pD[SHP]])) || (pEp[SHP] != epoch[pD[SHP]] && OK(3))) ->
      j = SHP; say(ND + p, M_FAILED, KEY(rq, pAtt[j]), WHY_LOST, 0); p_end(j) }
  :: d_step { alive[ND + p] && pS[SHP] != REQ_FREE && pT[SHP] == TX_MOVING && fR[p] == 0 && DUE(SHP) != 0 && linkUp[PQ(SHP)] -> j = SHP; send_begin(p, j) }
  :: d_step { alive[ND + p] && pS[SHP] == REQ_SHIP && pT[SHP] == TX_MOVING && DUE(SHP) == 0 && fR[p] != rq + 1 && linkUp[PQ(SHP)] && PROOM(p) ->
      j = SHP; handoff_move(j, TX_COMMITTING); pSaid[j] = true; PCH(j) ! F_COMMIT, pGid[j], pMis[j], 0 }
  /* Its own hold expires: when no answer can come any more, or with a clock that runs wild. */
  :: d_step { alive[ND + p] && pS[SHP] == REQ_SHIP && pT[SHP] != TX_WAITING && SILENT(SHP, rq) && CAN_SAY(ND + p) && PROOM(p) ->
      j = SHP; say(ND + p, M_FAILED, KEY(rq, pAtt[j]), WHY_LOST, 0); p_release(j) }
  :: d_step { alive[ND + p] && pS[SHP] == REQ_SHIP && FAULT(KIND_TIME) && CAN_SAY(ND + p) && PROOM(p) ->
      faults--; COST; j = SHP; say(ND + p, M_FAILED, KEY(rq, pAtt[j]), WHY_LOST, 0); p_release(j) }
  :: d_step { alive[ND + p] && !nodeUp[ND + p] && (pS[SHP] != REQ_FREE || pOa[SHP] != 0) && PROOM(p) ->
      COST;
      j = SHP; pOa[j] = 0; pOt[j] = 0;
      if
      :: pS[j] != REQ_FREE -> p_release(j)
      :: else
      fi }
  od
}

/* ---------------------------------------------------------------- router */
#define READYN(node) (up[node] && rWel[node])
inline tell(node, kind, key, one, two) {
  if
  :: up[node] -> toN[node] ! kind, key, one, two
  :: else /* the Hello of the next session will not list it */
  fi
}
/* Attempts are over, the next one has not begun: what nobody reads is zero, so that states differ by nothing else. */
inline rest(req) {
  rAtt[req] = 0; rGid[req] = 0; rMis[req] = 0; rBase[req] = 0; rProg[req] = false; rShip[req] = false
}
inline leave_prefill(req) {
  if
  :: rP[req] != NONE ->
    if
    :: rPtold[req] && !rShip[req] -> tell(ND + rP[req], M_CANCEL, KEY(req, rAtt[req]), 0, 0)
    :: else
    fi;
    rP[req] = NONE;
    rShip[req] = false;
    rPtold[req] = false
  :: else
  fi
}
inline leave_decode(req, knows) {
  if
  :: rD[req] != NONE ->
    if
    :: rOld[req] != 0 -> tell(rD[req], M_CANCEL, KEY(req, rOld[req]), 0, 0)
    :: else
    fi;
    if
    :: rTold[req] && !(knows) && OK(6) -> tell(rD[req], M_CANCEL, KEY(req, rAtt[req]), 0, 0) /* mutant 6: the cancel reaches only one leg */
    :: else
    fi;
    rD[req] = NONE; rOld[req] = 0; rTold[req] = false
  :: else
  fi
}
inline finish(req, knows) {
  assert(!rEnd[req]); /* I5 */
  leave_prefill(req);
  leave_decode(req, knows);
  if
  :: rS[req] != LEG_NONE -> leg_move(req, LEG_NONE)
  :: else
  fi;
  rest(req); /* nothing of it is read any more */
  rLast[req] = 0; rOut[req] = 0; rFail[req] = 0; rHand[req] = 0; slack[req] = 0;
  CLEARED(req);
  rEnd[req] = true;
  ended++
}
inline reserve(req, node) {
  if
  :: rD[req] == NONE -> rTold[req] = false
  :: else
  fi;
  rLast[req]++;
  assert(rLast[req] < 15);
  rAtt[req] = rLast[req];
  rProg[req] = false; rShip[req] = false; rGid[req] = 0; rMis[req] = 0;
  RUNS(req, false);
  rBase[req] = rOut[req];
  leg_move(req, LEG_RESERVING);
  rD[req] = node;
  rTold[req] = true;
  toN[node] ! M_RESERVE, KEY(req, rAtt[req]), rBase[req], 0
}
/* counted: an attempt is lost with it. Almost all of these only stray; a fault of a node (gap) and a death that was its own count
 * against the request. */
inline leg_failed(req, counted, handback, stays) {
  if
  :: handback ->
    if
    :: rProg[req] -> rHand[req] = 0
    :: else -> rHand[req]++
    fi
  :: !(handback) && (counted) && !rProg[req] && !GROW -> /* nothing is lost unless something broke, and a session that blips costs nothing */
    assert(slack[req] > 0);
    slack[req]--
  :: else
  fi;
  if
  :: rFail[req] + DEATHS(req) >= ATTEMPTS_MAX || rHand[req] >= HANDBACKS_MAX ->
    assert(!POISON || req == 0); /* nobody is failed for having been beside another one */
    finish(req, false)
  :: else ->
    if
    :: (stays) && rD[req] != NONE && READYN(rD[req]) ->
      b = (rOld[req] != 0 -> rOld[req] : (rTold[req] -> rAtt[req] : 0));
      leave_prefill(req);
      reserve(req, rD[req]);
      rOld[req] = b
    :: else ->
      leave_prefill(req);
      leave_decode(req, false);
      rest(req);
      leg_move(req, LEG_WAITING)
    fi
  fi
}
inline decoding(req) {
  flag = (rUnv[req] && rOld[req] == 0);
  if
  :: rOld[req] != 0 -> rAtt[req] = rOld[req]; rOld[req] = 0
  :: else
  fi;
  if
  :: rS[req] != LEG_DECODING -> leg_move(req, LEG_DECODING)
  :: else
  fi;
  rGid[req] = 0; rMis[req] = 0; rBase[req] = 0;
  rUnv[req] = flag
}
#define ANSWERS(req) (rS[req] == LEG_RESERVING || rS[req] == LEG_QUEUED)
inline go_local(req) {
  if
  :: ANSWERS(req) -> rOld[req] = 0; leg_move(req, LEG_DECODING); rBase[req] = 0
  :: else
  fi
}
inline send_prefill(req) {
  toN[ND + rP[req]] ! M_PREFILL, KEY(req, rAtt[req]), rGid[req] * 16 + rMis[req], LAST_ONE(req) + rD[req] * 16 + rEpoch[rD[req]] * 4 + rBase[req];
  rPtold[req] = true
}
inline late(node) {
  if
  :: rEnd[r] == 0 && rD[r] == node && rTold[r] && a < rAtt[r] && OK(20) -> skip /* mutant 20: a late Cancel where the next attempt is */
  :: else ->
    if
    :: t == M_GRANTED || t == M_QUEUED || t == M_STARTED -> tell(node, M_CANCEL, KEY(r, a), 0, 0)
    :: else
    fi
  fi
}
inline started(req) {
  if
  :: ANSWERS(req) && rOld[req] == 0 -> go_local(req)
  :: else
  fi;
  if
  :: rS[req] == LEG_PREFILLING || rOld[req] != 0 -> decoding(req)
  :: else
  fi;
  RUNS(req, rS[req] == LEG_DECODING)
}
/* The attempt of r has failed: leg_failed follows, which is in an event once only (Spin bounds their length). */
hidden byte fails, loses, returns, remains;
#define FAILS(counted, handback, stays) fails = true; loses = counted; returns = handback; remains = stays
inline on_token(node) {
  if
  :: rEnd[r] != 0 -> skip
  :: rEnd[r] == 0 && !((rOld[r] != 0 && a == rOld[r] && node == rD[r]) || (a == rAtt[r] && (node == rD[r] || node == ND + rP[r]))) -> skip
  :: else ->
    if
    :: node == rD[r] && a == rAtt[r] -> go_local(r)
    :: else
    fi;
    if
    :: node == rD[r] && (rS[r] == LEG_PREFILLING || (rOld[r] != 0 && a == rOld[r])) -> decoding(r)
    :: else
    fi;
    if
    :: x > rOut[r] && OK(17) -> rFail[r]++; FAILS(true, false, false)
    :: x < rOut[r] && OK(17) -> skip
    :: x == rOut[r] || MUT(17) -> /* mutant 17: tokens are taken as they come */
      assert(x == rOut[r] && x < NTOK); /* I5: one sequence without a gap */
      rOut[r]++;
      rProg[r] = true;
      CLEARED(r);
      if
      :: x == NTOK - 1 -> flag = (rS[r] == LEG_DECODING); finish(r, flag)
      :: else
      fi
    fi
  fi
}
inline on_granted() {
  if
  :: ANSWERS(r) -> rOld[r] = 0; rGid[r] = x / 16; rMis[r] = x % 16; leg_move(r, LEG_GRANTED)
  :: else
  fi
}
inline on_already() {
  if
  :: ANSWERS(r) && x < rAtt[r] ->
    rOld[r] = x;
    if
    :: y > rOut[r] && OK(30) -> FAILS(false, false, false) /* mutant 30: tokens that went by unread are not missed */
    :: else -> decoding(r)
    fi
  :: else
  fi
}
inline on_shipped() {
  if
  :: rShip[r] -> skip
  :: else ->
    rShip[r] = true;
    if
    :: x == 0 && rS[r] == LEG_PREFILLING && OK(43) -> rUnv[r] = true /* whoever ended the grant, or began with it, says so; mutant 43: a failure */
    :: x == 0 && rS[r] == LEG_PREFILLING && MUT(43) -> FAILS(true, false, true)
    :: x == 1 && rS[r] == LEG_PREFILLING && OK(36) -> rUnv[r] = true /* mutant 36: nobody asks whether Started was lost */
    :: else
    fi
  fi
}
inline on_failed(node) {
  if
  :: node != rD[r] && rS[r] == LEG_DECODING -> rShip[r] = true
  :: node != rD[r] && rS[r] == LEG_PREFILLING && x == WHY_GONE && OK(38) -> skip /* mutant 38: a Prefill lost with the session is a failure */
  :: node == rD[r] && rS[r] == LEG_PREFILLING && x == WHY_GONE && OK(45) -> rUnv[r] = true /* P will say: all may be done, with its token on the way; mutant 45: a failure */
  :: node == rD[r] && ANSWERS(r) && x == WHY_AGAIN -> rTold[r] = false; leave_prefill(r); leave_decode(r, false); rest(r); leg_move(r, LEG_WAITING)
  :: else ->
    good = (node == rD[r]);
    flag = !(good && ANSWERS(r) && x == WHY_GONE); /* a Reserve that was lost on the way: nobody failed */
    if
    :: good -> rTold[r] = (x == WHY_GONE) /* come twice, it may meet what was said again since */
    :: else -> rPtold[r] = false
    fi;
    back = (x == WHY_AGAIN);
    same = !good;
    FAILS(flag, back, same)
  fi
}
inline on_preempted(node) {
  if
  :: node == rD[r] -> rTold[r] = false; FAILS(false, true, false)
  :: else
  fi
}
inline on_refused(node) {
  if
  :: node != rD[r] && rS[r] == LEG_PREFILLING && x == 0 -> rPtold[r] = false; leave_prefill(r); leg_move(r, LEG_GRANTED)
  :: node != rD[r] && rS[r] == LEG_PREFILLING && x == 1 -> assert(false) /* a request is failed that nothing is wrong with */
  :: else
  fi
}
#if SUSPECTS
inline on_prefilling(node) {
  for (u : 0 .. NREQ - 1) {
    old[u] = rNote[(node - ND) * NREQ + u]; oldAtt[u] = rNoteAtt[(node - ND) * NREQ + u];
    rNote[(node - ND) * NREQ + u] = 0; rNoteAtt[(node - ND) * NREQ + u] = 0
  }
  noted(node);
  do
  :: toR[node] ? [M_PREFILLING, _, _, 0] -> toR[node] ? t, k, x, y; r = k / 16; a = k % 16; noted(node)
  :: else -> break
  od
}
inline noted(node) { /* who has left may still be in the engine, but does not get there any more */
  if
  :: a != 0 && !rEnd[r] && ((old[r] != 0 && oldAtt[r] == a) || (rP[r] != NONE && ND + rP[r] == node && a == rAtt[r])) ->
    rNote[(node - ND) * NREQ + r] = 1 + x; rNoteAtt[(node - ND) * NREQ + r] = a
  :: else
  fi
}
inline count_death(req, place) {
  rDeaths[req] = ((rDeaths[req] != 0 && rPlace[req] == place) -> rDeaths[req] + 1 : 1);
  rPlace[req] = place;
  assert(rDeaths[req] <= truth[req]) /* no innocent's */
}
/* The process of the node is gone: was the engine at request r? */
inline died(node) {
  if
  :: MUT(40) -> skip /* mutant 40: no death counts */
  :: OK(40) && MUT(39) && (rD[r] == node || (rP[r] != NONE && ND + rP[r] == node)) -> count_death(r, 1) /* mutant 39: all that is at the node counts */
  :: OK(40) && OK(39) && node >= ND ->
    u = (node - ND) * NREQ + r;
    if
    :: rNote[u] != 0 -> x = rNote[u]; count_death(r, x)
    :: else
    fi
  :: OK(40) && OK(39) && node < ND && rD[r] == node && rS[r] == LEG_DECODING && rRuns[r] && !rProg[r] -> x = 8 + rOut[r]; count_death(r, x)
  :: else
  fi;
  if
  :: node >= ND -> rNote[(node - ND) * NREQ + r] = 0; rNoteAtt[(node - ND) * NREQ + r] = 0
  :: else
  fi
}
#endif
inline lose_node(node) {
  rLost[node] = true;
  fails = false;
  for (r : 0 .. NREQ - 1) {
#if SUSPECTS
    if
    :: !rEnd[r] -> died(node)
    :: else
    fi;
#endif
    if
    :: rEnd[r] == 0 && rD[r] == node ->
      rTold[r] = false;
      rOld[r] = 0;
      FAILS(!ANSWERS(r), false, false)
    :: rEnd[r] == 0 && rP[r] != NONE && ND + rP[r] == node ->
      rPtold[r] = false;
      if
      :: rS[r] == LEG_DECODING -> leave_prefill(r)
      :: else -> FAILS(true, false, true)
      fi
#if SUSPECTS
    :: rEnd[r] == 0 && rD[r] != node && !(rP[r] != NONE && ND + rP[r] == node) && rFail[r] + rDeaths[r] >= ATTEMPTS_MAX -> /* it had left already */
      FAILS(false, false, false)
#endif
    :: else
    fi;
    if
    :: fails -> fails = false; leg_failed(r, loses, returns, remains)
    :: else
    fi
  }
}
inline on_welcome(node) {
  rWel[node] = true;
  flag = (rEpoch[node] == x);
  good = (rEpoch[node] != NONE);
  rEpoch[node] = x;
  rLost[node] = false;
  if
  :: flag || MUT(18) -> /* mutant 18: a node started again is taken for the one before */
    for (r : 0 .. NREQ - 1) {
      if
      :: rEnd[r] == 0 && rD[r] == node && ANSWERS(r) && OK(26) -> toN[node] ! M_RESERVE, KEY(r, rAtt[r]), rBase[r], 0; rTold[r] = true /* mutant 26: what was lost is not said again */
      :: else
      fi;
      if
      :: rEnd[r] == 0 && rP[r] != NONE && ND + rP[r] == node && rS[r] == LEG_PREFILLING && !rShip[r] && OK(26) -> send_prefill(r)
      :: else
      fi;
      if
      :: rEnd[r] == 0 && rD[r] == node && (rS[r] == LEG_DECODING || rS[r] == LEG_PREFILLING) && OK(36) -> rUnv[r] = true
      :: else
      fi
    }
  :: else ->
    rWel[node] = false; /* not to be chosen by what follows */
    if
    :: good -> lose_node(node)
    :: else
    fi;
    rWel[node] = true;
    rLost[node] = false
  fi
}
inline r_message(node) {
  r = k / 16; a = k % 16;
  fails = false;
  if
  :: t == M_WELCOME -> on_welcome(node)
#if SUSPECTS
  :: t == M_PREFILLING -> on_prefilling(node)
#endif
  :: t == M_TOKEN -> on_token(node)
  :: else ->
    if
    :: rEnd[r] != 0 || !(rD[r] == node || (rP[r] != NONE && ND + rP[r] == node)) -> late(node)
    :: else ->
      if
      :: rOld[r] != 0 && a == rOld[r] && node == rD[r] ->
        if
        :: t == M_STARTED -> started(r)
        :: t == M_FAILED || t == M_PREEMPTED -> rOld[r] = 0
        :: else
        fi
      :: else ->
        if
        :: a == rAtt[r] ->
          if
          :: t == M_GRANTED && node == rD[r] -> on_granted()
          :: t == M_QUEUED && node == rD[r] && rS[r] == LEG_RESERVING -> leg_move(r, LEG_QUEUED)
          :: t == M_STARTED && node == rD[r] -> started(r)
          :: t == M_ALREADY && node == rD[r] -> on_already()
          :: t == M_SHIPPED && node != rD[r] -> on_shipped()
          :: t == M_FAILED -> on_failed(node)
          :: t == M_PREEMPTED -> on_preempted(node)
          :: t == M_REFUSED -> on_refused(node)
          :: t == M_STALE -> assert(false) /* the node knows a later attempt than R */
          :: else
          fi
        :: t == M_ALREADY && a != rAtt[r] && x == rAtt[r] -> skip
        :: else -> late(node)
        fi
      fi
    fi
  fi;
  if
  :: fails -> leg_failed(r, loses, returns, remains)
  :: else
  fi
}
#define CAN_TELL(node) (len(toN[node]) <= SC - 4)
#if NN == 2
#define CAN_TELL_ALL (CAN_TELL(0) && CAN_TELL(1))
#elif NN == 3
#define CAN_TELL_ALL (CAN_TELL(0) && CAN_TELL(1) && CAN_TELL(2))
#else
#define CAN_TELL_ALL (CAN_TELL(0) && CAN_TELL(1) && CAN_TELL(2) && CAN_TELL(3))
#endif
#if SUSPECTS
inline lost_from_sight(node) { /* for all that R can know, it died in the middle of what it named last */
  for (u : 0 .. NREQ - 1) {
    if
    :: (node >= ND && rNote[(node - ND) * NREQ + u] != 0) || (node < ND && rRuns[u]) -> ITS_OWN(u)
    :: else
    fi
  }
}
#endif
proctype Session(byte node) { /* R's side of it */
end:
  do
  :: d_step { rAlive && up[node] && len(toR[node]) > 0 && CAN_TELL_ALL -> toR[node] ? t, k, x, y; r_message(node); v = 0 }
  :: d_step { rAlive && up[node] && len(toR[node]) > 0 && FAULT(KIND_DUP) && CAN_TELL_ALL && !(toR[node] ? [M_WELCOME, _, _, _]) ->
      faults--; COST; toR[node] ? t, k, x, y; toR[node] ! t, k, x, y; r_message(node); v = 0 }
  :: d_step { rAlive && !up[node] && alive[node] && !nodeUp[node] -> /* both know of the end; Hello opens the next one */
      up[node] = true;
      rWel[node] = false;
      for (r : 0 .. NREQ - 1) {
        a = 0; x = 0;
        if
        :: rEnd[r] == 0 && rD[r] == node ->
          x = rOld[r];
          if
          :: rTold[r] -> a = rAtt[r]
          :: else
          fi
        :: rEnd[r] == 0 && rP[r] != NONE && ND + rP[r] == node && rPtold[r] && !rShip[r] -> a = rAtt[r]
        :: else
        fi;
        toN[node] ! M_HELLO, KEY(r, a), x, rOut[r]
      }
      v = 0 }
  :: d_step { rAlive && !up[node] && !rLost[node] && rEpoch[node] != NONE && CAN_TELL_ALL -> /* its session did not come back */
      if
      :: rEpoch[node] == epoch[node] ->
        COST;
#if SUSPECTS
        lost_from_sight(node)
#endif
      :: else
      fi;
      lose_node(node); v = 0 }
  od
}
/* Requests are alike, and so are nodes: the first to begin is called 0, and so is the first node that is used while both are new. */
#if NREQ == 1
#define UNASKED (rLast[0] == 0)
#define NO_WORK(p) (pS[p] == REQ_FREE && pOa[p] == 0 && pCan[p] == 0)
#else
#define UNASKED (rLast[0] == 0 && rLast[1] == 0 && ended == 0)
#define NO_WORK(p) false
#endif
#define ASLEEP(node) (epoch[node] == 0 && up[node] && nodeUp[node] && rWel[node] && len(toN[node]) + len(toR[node]) == 0)
#define UNUSED(p) (ASLEEP(ND + (p)) && NO_WORK(p) && linkN[p] == 0 && fR[p] == 0)
proctype Leg(byte rq) {
end:
  do
  :: d_step { rAlive && rEnd[rq] == 0 && rS[rq] == LEG_WAITING && READYN(0) && CAN_TELL(0) && (rq == 0 || !UNASKED) -> reserve(rq, 0) }
#if ND > 1
  :: d_step { rAlive && rEnd[rq] == 0 && rS[rq] == LEG_WAITING && READYN(1) && CAN_TELL(1) && !(UNASKED && (rq != 0 || (ASLEEP(0) && ASLEEP(1)))) -> reserve(rq, 1) }
#endif
  :: d_step { rAlive && rEnd[rq] == 0 && rS[rq] == LEG_GRANTED && READYN(ND) && CAN_TELL(ND) ->
      leg_move(rq, LEG_PREFILLING); rP[rq] = 0; send_prefill(rq) }
#if NP > 1
  :: d_step { rAlive && rEnd[rq] == 0 && rS[rq] == LEG_GRANTED && READYN(ND + 1) && CAN_TELL(ND + 1) && !(UNUSED(0) && UNUSED(1)) ->
      leg_move(rq, LEG_PREFILLING); rP[rq] = 1; send_prefill(rq) }
#endif
  /* A leg that ought to be decoding is silent: its node is asked, with the next attempt. */
  :: d_step { rAlive && rEnd[rq] == 0 && rUnv[rq] && rD[rq] != NONE && READYN(rD[rq]) && CAN_TELL_ALL ->
      rUnv[rq] = false;
      if
      :: rS[rq] == LEG_PREFILLING && !rShip[rq] -> skip
      :: else ->
        a = rAtt[rq]; flag = rProg[rq];
        leave_prefill(rq);
        reserve(rq, rD[rq]);
        rOld[rq] = a; rProg[rq] = flag
      fi }
  :: d_step { rAlive && rEnd[rq] == 0 && cancels > 0 && CAN_TELL_ALL -> cancels--; finish(rq, false) }
  od
}

/* ---------------------------------------------------------------- what breaks */
#define STILL_RUNS (ended < NREQ)
/* A prefill node that has nothing to do with any request may break as it likes: nobody sees a difference. */
#if NREQ == 1 && !SUSPECTS
#define BUSY(node) (node < ND || pS[(node - ND) * NREQ] != REQ_FREE || rP[0] == node - ND || len(toN[node]) + len(toR[node]) > 0)
#elif NREQ == 2
#define BUSY(node) (node < ND || pS[(node - ND) * NREQ] != REQ_FREE || pS[(node - ND) * NREQ + 1] != REQ_FREE || rP[0] == node - ND || rP[1] == node - ND || len(toN[node]) + len(toR[node]) > 0)
#else
#define BUSY(node) true
#endif
proctype Break(byte node) {
end:
  do
  :: d_step { FAULT(KIND_SESSION) && up[node] && STILL_RUNS && BUSY(node) -> faults--; cut_session(node) }
  :: d_step { FAULT(KIND_CRASH) && alive[node] && STILL_RUNS && BUSY(node) ->
      faults--; COST;
      if
      :: node < ND ->
#if SUSPECTS
        for (u : 0 .. NREQ - 1) {
          if
          :: dS[node * NREQ + u] == REQ_DECODE || (rRuns[u] && (len(toR[node]) > 0 || !up[node] || !nodeUp[node] || !rWel[node])) -> ITS_OWN(u)
          :: else
          fi
        }
#endif
        crash_decode(node)
      :: else ->
        n = node - ND;
#if SUSPECTS
        deaths_of(n);
#endif
        crash_prefill(n)
      fi }
  :: d_step { !alive[node] -> alive[node] = true }
  od
}
proctype BreakRest() {
end:
  do
  :: d_step { FAULT(KIND_LINK) && linkUp[0] && STILL_RUNS -> faults--; COST; cut_link(0) }
#if NQ > 1
  :: d_step { FAULT(KIND_LINK) && linkUp[1] && STILL_RUNS -> faults--; COST; cut_link(1) }
#endif
  :: d_step { FAULT(KIND_ROUTER) && rAlive && STILL_RUNS -> /* its clients get UNAVAILABLE; a new one knows nothing */
      faults--; COST;
      rAlive = false;
      for (n : 0 .. NN - 1) {
        cut_session(n);
        rEpoch[n] = NONE;
        rLost[n] = false
      }
      for (r : 0 .. NREQ - 1) {
        if
        :: rEnd[r] == 0 -> rEnd[r] = true; ended++
        :: else
        fi;
        rS[r] = LEG_NONE; rUnv[r] = false; rD[r] = NONE; rP[r] = NONE; rOld[r] = 0; rTold[r] = false; rPtold[r] = false;
        rest(r);
        rLast[r] = 0; rOut[r] = 0; rFail[r] = 0; rHand[r] = 0; slack[r] = 0;
        CLEARED(r)
      }
      v = 0 }
  :: d_step { !rAlive && !rGone -> rAlive = true }
  :: d_step { !rAlive && !rGone -> rGone = true }
  od
}
/* Nothing can happen any more. */
active proctype Rest() {
  c_code {
    kinds = from_env("KINDS", KINDS);
    now.faults = from_env("FAULTS", FAULTS);
    now.cancels = from_env("CANCELS", CANCELS);
  };
  d_step {
    for (u : 0 .. ND * DPOOL - 1) { kS[u] = B_FREE; }
    for (u : 0 .. DI - 1) { dS[u] = REQ_FREE; dG[u] = RX_FREE; }
    for (u : 0 .. PI - 1) { pS[u] = REQ_FREE; pT[u] = TX_FREE; }
    for (u : 0 .. NREQ - 1) { rS[u] = LEG_WAITING; }
    for (u : 0 .. NN - 1) { up[u] = true; nodeUp[u] = true; rWel[u] = true; rEpoch[u] = 0; }
    v = 0
  }
  atomic {
    run Leg(0);
#if NREQ > 1
    run Leg(1);
#endif
#if NREQ > 2
    run Leg(2);
#endif
#define DECODE_NODE(d) run Session(d); run Break(d); run Decode(d); run Held(d, 0); run Link(d, 0);
#define PREFILL_NODE(p) run Session(ND + p); run Break(ND + p); run Prefill(p); run Ship(p, 0);
    DECODE_NODE(0)
    PREFILL_NODE(0)
#if NREQ > 1
    run Held(0, 1); run Ship(0, 1);
#endif
#if NREQ > 2
    run Held(0, 2); run Ship(0, 2);
#endif
#if ND > 1
    DECODE_NODE(1)
#if NREQ > 1
    run Held(1, 1);
#endif
#endif
#if NP > 1
    PREFILL_NODE(1) run Link(0, 1);
#endif
    run BreakRest();
  }
end:
  timeout ->
  d_step {
    assert(ended == NREQ); /* I5: every request has ended */
    for (u : 0 .. ND * DPOOL - 1) { assert(kPin[u] == 0 && kUse[u] == 0 && kS[u] != B_FILLING); } /* I6 */
    for (u : 0 .. ND - 1) { assert(dBook[u] == 0 && lR[u] == 0 && sR[u] == 0); }
    for (u : 0 .. DI - 1) { assert(dS[u] == REQ_FREE && dG[u] == RX_FREE && (dOa[u] == 0 || !rGone)); } /* no words are kept for who does not come back */
    for (u : 0 .. PI - 1) { assert(pS[u] == REQ_FREE && pT[u] == TX_FREE && (pOa[u] == 0 || !rGone)); }
    v = 0
  }
}
ltl live { <> (ended == NREQ) }
