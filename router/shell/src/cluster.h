/* cluster.h - the admin listener. Handlers hand over; everything runs on the core thread. Calls that nodes must answer
 * become gathers: one query per node, one deadline, one answer. */
#ifndef FRONT_CLUSTER_H
#define FRONT_CLUSTER_H
#include "shell_int.h"

typedef struct admin_call admin_call;
struct admin_call {
    inbox_item item;
    kvf_router_shell *shell;
    kvf_rpc_call *call; /* our reference */
    const ProtobufCMessage *message; /* lives as long as call */
    void (*run)(admin_call *a); /* takes it */
};
void front_admin_call_free(admin_call *a);
void front_admin_fail(admin_call *a, kvf_status status, const char *field, const char *text); /* and frees it */

/* Index of a node by its id; false: a has been failed. */
bool front_cluster_find(admin_call *a, ProtobufCBinaryData id, uint32_t *node);

/* ---- state.c ---- */
/* malloc'ed as one piece, freed with free; points into itself only. NULL: no memory. */
Kvferry__V1__ClusterState *front_cluster_state(kvf_router_shell *s);
void front_cluster_node_status(
    const kvf_router_node *n, const char *address, Kvferry__V1__NodeStatus *out, Kvferry__V1__BlockCounts *blocks);

/* ---- query.c ---- */
void front_query_audit(admin_call *a);
void front_query_blocks(admin_call *a);
void front_query_flush(admin_call *a);
void front_query_answer(kvf_router_shell *s, const kvf_router_action *action);
void front_query_stop(kvf_router_shell *s);
#endif
