"""The checker of signatures in tests: beartype, with int accepted where float is asked for, as type checkers do."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
