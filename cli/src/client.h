/* client.h - a command's connection to a router: one channel, calls that Ctrl-C can cancel, and what a failure means to
 * a person.
 *
 * First Ctrl-C (TERM, HUP): the running call is cancelled and the command ends with status 1; second: the process dies
 * at once. */
#ifndef KVF_CLI_CLIENT_H
#define KVF_CLI_CLIENT_H
#include "kvf/rpc.h"
#include <stddef.h>

enum { KVF_EXIT_OK = 0, KVF_EXIT_FAILED = 1, KVF_EXIT_USAGE = 64, KVF_EXIT_UNAVAILABLE = 69, KVF_EXIT_CONFIG = 78 };

#define KVF_CLI_ROUTER "127.0.0.1:7070" /* where commands look for the client listener */
#define KVF_CLI_ADMIN "127.0.0.1:7071" /* and for the admin listener */

/* Files, or NULL. ca: the router speaks TLS and must show a certificate of it. cert, key: ours, where it demands one.
 * name: that the router's certificate must carry instead of the host that is called. */
typedef struct {
    const char *ca, *cert, *key, *name;
} kvf_client_tls;
/* Their rows, for a struct `type` that holds them as `member`. */
#define KVF_CLIENT_TLS_ROWS(type, member)                                                                              \
    {"tls-ca", 0, KVF_ARG_TEXT, "FILE", "the router speaks TLS, with a certificate of this authority (PEM)",           \
        offsetof(type, member.ca), 0, 0, "KVFERRY_TLS_CA", false},                                                     \
        {"tls-cert", 0, KVF_ARG_TEXT, "FILE", "our certificate, where the router demands one (PEM)",                   \
            offsetof(type, member.cert), 0, 0, "KVFERRY_TLS_CERT", false},                                             \
        {"tls-key", 0, KVF_ARG_TEXT, "FILE", "its key (PEM)", offsetof(type, member.key), 0, 0, "KVFERRY_TLS_KEY",     \
            false},                                                                                                    \
    {                                                                                                                  \
        "tls-name", 0, KVF_ARG_TEXT, "NAME", "name in the router's certificate (default: the host of --router)",       \
            offsetof(type, member.name), 0, 0, "KVFERRY_TLS_NAME", false                                               \
    }

typedef struct kvf_client kvf_client;
/* address: borrowed. On failure the reason was printed and *exit_status set. */
kvf_client *kvf_client_open(const char *address, const kvf_client_tls *tls, int *exit_status);
void kvf_client_close(kvf_client *c);

/* One call, its answer the caller's (kvf_rpc_message_free); NULL: *exit_status says, and the reason was printed. */
ProtobufCMessage *kvf_client_call(kvf_client *c, const ProtobufCServiceDescriptor *service, const char *method,
    const ProtobufCMessage *request, uint64_t deadline_ms, int *exit_status);
/* The same without a word on stderr; result may be NULL. */
ProtobufCMessage *kvf_client_try(kvf_client *c, const ProtobufCServiceDescriptor *service, const char *method,
    const ProtobufCMessage *request, uint64_t deadline_ms, kvf_rpc_result *result);

/* A stream. on_message: *message is borrowed until return, or taken by setting it NULL. False: cancel the rest. */
typedef bool (*kvf_client_message_fn)(void *self, ProtobufCMessage **message);
/* The result says how it ended; KVF_OK when with OK or because on_message wanted no more. */
kvf_status kvf_client_stream(kvf_client *c, const ProtobufCServiceDescriptor *service, const char *method,
    const ProtobufCMessage *request, uint64_t deadline_ms, kvf_client_message_fn on_message, void *self,
    kvf_rpc_result *result);

/* Conversations: a Ctrl-C ends the call, not the command. */
bool kvf_client_interrupted(const kvf_client *c); /* since the last reset */
void kvf_client_reset(kvf_client *c);
int kvf_client_interrupt_fd(const kvf_client *c); /* readable after a Ctrl-C, until reset */

/* For commands that make calls of their own, with callbacks: they see to their end before the client is closed. */
kvf_rpc_channel *kvf_client_channel(kvf_client *c);

/* Prints why a call failed, for people, and returns the exit status: 69 where nothing answers. */
int kvf_client_report(const kvf_client *c, const kvf_rpc_result *result);
int kvf_client_exit_status(const kvf_rpc_result *result);
#endif
