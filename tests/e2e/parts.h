/* parts.h - a cluster of single processes, each of which a test kills, freezes, thaws and starts again by itself, and
 * the wires between them, which it cuts or holds.
 *
 * Nodes listen on Unix sockets in a directory of their own. A router reaches node i over `wire` i: a small forwarder of
 * the harness that stands in front of the node's socket and passes bytes on unless it is told otherwise. */
#ifndef KVF_E2E_PARTS_H
#define KVF_E2E_PARTS_H
#include "harness.h"

enum { E2E_NODES_MAX = 8, E2E_ROUTERS_MAX = 2, E2E_PART_ARGS_MAX = 8 };

typedef struct e2e_wire e2e_wire;
/* Listens at `from`, connects to `to` (paths of Unix sockets). */
e2e_wire *e2e_wire_open(const char *from, const char *to);
void e2e_wire_close(e2e_wire *w);
void e2e_wire_cut(e2e_wire *w); /* ends all connections that are there now; new ones are passed on */
void e2e_wire_hold(e2e_wire *w, bool hold); /* nothing moves in either direction, nothing is closed */
void e2e_wire_refuse(e2e_wire *w, bool refuse); /* cuts, and ends every new connection at once */
void e2e_wire_lead(e2e_wire *w, const char *to); /* new connections go there */
size_t e2e_wire_connections(e2e_wire *w); /* that are open now */

typedef struct {
    char id[8];
    bool prefill;
    char socket[96], control[112]; /* its path, and as an option */
    char address[128]; /* where routers find it */
    e2e_process process;
    e2e_wire *wire; /* NULL: routers connect to the node itself */
    const char *env; /* of its next start; NULL: none */
} e2e_part;

typedef struct {
    char dir[32];
    const char *model;
    /* More options of every node and every router; NULL at the end. Set before e2e_parts_start. */
    const char *node_args[E2E_PART_ARGS_MAX], *router_args[E2E_PART_ARGS_MAX];
    const char *node_env; /* of all nodes that have none of their own */
    bool wires;
    /* Folder of NAME.pem and NAME.key for every process and of ca.pem: control is TCP under TLS then, not Unix sockets,
     * and routers are asked with `credentials`. NULL: plain. */
    const char *certs;
    const kvf_rpc_credentials *credentials;
    e2e_part node[E2E_NODES_MAX]; /* prefill nodes first: p0, p1, ..., d0, d1, ... */
    size_t prefill, nodes, routers;
    e2e_cluster router[E2E_ROUTERS_MAX]; /* .serve is the router */
} e2e_parts;

void e2e_parts_start(e2e_parts *k, size_t prefill, size_t decode, size_t routers); /* and waits until all are ready */
void e2e_parts_stop(e2e_parts *k); /* each must end with 0 */
e2e_part *e2e_part_find(e2e_parts *k, const char *id);
void e2e_part_start(e2e_parts *k, e2e_part *p);
void e2e_part_kill(e2e_part *p); /* SIGKILL, and waits for its end */
void e2e_router_start(e2e_parts *k, size_t i); /* again at the addresses it had */
void e2e_router_start_again(e2e_parts *k, size_t i); /* one that has ended by itself; waits until all are ready */
void e2e_router_kill(e2e_parts *k, size_t i); /* SIGKILL; connections to it are closed */
size_t e2e_parts_ready(e2e_parts *k, size_t router); /* nodes that this router counts as READY */
void e2e_parts_all_ready(e2e_parts *k); /* waits until every router counts every node as READY */

/* Cuts the open sockets of this process that are connected to `other`: page connections. Returns how many; -1: this
 * system does not let us (then the test says so). */
int e2e_cut_between(pid_t one, pid_t other);
/* Its TCP listeners take no more connections. As above. */
int e2e_shut_listeners(pid_t pid);

#endif
