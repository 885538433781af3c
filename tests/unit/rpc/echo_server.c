/* The echo service as a program: prints "ready HOST:PORT", serves until its standard input ends. */
#include <stdio.h>
#include <unistd.h>
#include "fixture.h"

int main(void) {
    fixture f;
    char byte;
    fixture_start(&f, NULL);
    kvf_rpc_health_set(f.server, "", KVF_RPC_HEALTH_SERVING);
    printf("ready %s\n", kvf_rpc_server_address(f.server, 0));
    fflush(stdout);
    while (read(0, &byte, 1) > 0) {
    }
    fixture_stop(&f);
    return 0;
}
