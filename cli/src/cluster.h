/* cluster.h - what nodes, kv, top and audit make of the admin API's answers: pure, for tests. */
#ifndef KVF_CLI_CLUSTER_H
#define KVF_CLI_CLUSTER_H
#include "buf.h"
#include "kvferry/v1/kvferry.pb-c.h"

const char *kvf_cluster_role(Kvferry__V1__Role role); /* "prefill" */
const char *kvf_cluster_state(Kvferry__V1__NodeState state); /* "ready" */
/* Tables for people. */
void kvf_cluster_nodes_table(const Kvferry__V1__ClusterState *state, kvf_buf *out);

typedef struct {
    char node[64];
    uint64_t blocks, pinned, cached; /* cached: nobody's now, kept for its prefix */
    uint64_t shared; /* held by two requests or more */
    uint64_t duplicates; /* blocks whose prefix another block of this node holds too */
} kvf_cluster_blocks;
/* One line per node, in order of first appearance. Returns how many were written. */
uint32_t kvf_cluster_count_blocks(const Kvferry__V1__GetBlocksResponse *r, kvf_cluster_blocks *out, uint32_t max);
void kvf_cluster_blocks_table(const Kvferry__V1__GetBlocksResponse *r, bool each, kvf_buf *out);

/* What is held although nothing runs: one line per node and kind. Only where the answer says at_rest. True: something
 * was. */
bool kvf_cluster_held_at_rest(const Kvferry__V1__AuditResponse *r, kvf_buf *out);
#endif
