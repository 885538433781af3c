#include "cmd.h"

int main(int argc, char **argv) { return kvf_cli_main(argc > 0 ? argc - 1 : 0, argv + 1); }
