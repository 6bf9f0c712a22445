from contract.plain_keys import chain as chain
from contract.plain_keys import pack_list as pack_list
from contract.plain_keys import read_ids as read_ids
from contract.plain_keys import write_ids as write_ids
