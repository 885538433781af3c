/* States of a block of a node's pool and the moves between them: kv_set_state asserts by it, and the model. */
STATE(FREE)
STATE(FILLING)
STATE(SEALED)
MOVE(FREE, FILLING, take)
MOVE(FILLING, SEALED, seal)
MOVE(FILLING, FREE, let_go)
MOVE(SEALED, FREE, let_go)
