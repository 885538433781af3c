/* States of a block of a node's pool and the moves between them; read by C (table_check.c) and by the model. */
STATE(FREE)
STATE(FILLING)
STATE(SEALED)
MOVE(FREE, FILLING, take)
MOVE(FILLING, SEALED, seal)
MOVE(FILLING, FREE, let_go)
MOVE(SEALED, FREE, let_go)
