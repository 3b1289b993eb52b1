"""What a run's files may hold, whoever wrote them: a value of the wrong kind counts as absent."""


def number(value) -> float | int | None:
    """A finite number, or None: no bool, no NaN, nothing that a double cannot hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1e300 < value < 1e300:
        return None
    return value


def table(value) -> dict:
    return value if isinstance(value, dict) else {}


def as_list(value) -> list:
    return value if isinstance(value, list) else []


def numbers(value) -> dict:
    return {str(key): one for key, one in table(value).items() if number(one) is not None}
