"""Times in text: ISO 8601, numbers since 1970, or as a pattern says. What can be read in two ways is never guessed.

strings of a column ──▶ how they are written, where that is certain ──▶ times
"""

from __future__ import annotations

import re
from calendar import month_name
from typing import Any, NamedTuple

import polars as pl

from windrow.core.arrays.dataframes import InputError

EPOCHS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}  # microseconds; nanoseconds are divided first
_FIRST_DIGITS = {"s": 10, "ms": 13, "us": 16, "ns": 19}  # digits of a time from 2001 to 2286
_ISO = r"^\d{4}[-/]\d"
_CLOCK = r"^\d{1,2}:\d{2}"
_DAY_AND_MONTH = re.compile(
    r"(\d{1,2})([/.-])(\d{1,2})\2(\d{4}|\d{2})(?:([ T])(\d{1,2}:\d{2})(:\d{2})?(\.\d+)?( ?[AaPp][Mm])?)?"
)


class Written(NamedTuple):
    """How the times of a column are written: None is ISO 8601. A doubt says why that is not certain."""

    dtype: pl.DataType
    time_format: str | None = None
    doubt: str = ""


def time_format(value: Any, name: str) -> Any:
    """Check a format of times: a unit since 1970, or a pattern with a day, a month and a year."""
    if value in EPOCHS or (isinstance(value, str) and "%" in value):
        return value
    raise ValueError(
        f"{name} must be one of {', '.join(EPOCHS)} since 1970, or a pattern such as '%d/%m/%Y %H:%M', not {value!r}"
    )


def is_time(dtype: pl.DataType) -> bool:
    return isinstance(dtype, pl.Datetime | pl.Date)


# --- from text to times ---------------------------------------------------------------------------------------------


def times_of(strings: pl.Series, dtype: pl.DataType, time_format: str | None = None) -> pl.Series:
    """Text as times; those without a zone are in UTC. A pattern with hours is not one of dates, which are ISO then."""
    if strings.null_count() == strings.len():
        return pl.Series(strings.name, [None] * strings.len(), dtype)
    if isinstance(dtype, pl.Date) and (time_format in EPOCHS or _has_hours(time_format)):
        time_format = None
    if time_format in EPOCHS:
        return since_1970(strings, dtype, str(time_format))
    if time_format is None:
        _check_iso(strings)
    try:
        if isinstance(dtype, pl.Datetime):
            moment = strings.str.to_datetime(time_format, time_unit=dtype.time_unit, time_zone="UTC").dt
            return moment.convert_time_zone(dtype.time_zone) if dtype.time_zone else moment.replace_time_zone(None)
        return strings.str.to_date(time_format)
    except pl.exceptions.PolarsError as error:
        raise InputError(_not_a_time(strings, dtype, time_format)) from error


def since_1970(numbers: pl.Series, dtype: pl.DataType, unit: str) -> pl.Series:
    """Numbers, or text with numbers, as times; fractions of seconds and milliseconds are kept to the microsecond."""
    assert isinstance(dtype, pl.Datetime)
    try:
        if not numbers.dtype.is_numeric():
            whole = not numbers.str.contains(".", literal=True).any()
            numbers = numbers.cast(pl.Int64 if whole else pl.Float64)
        if numbers.dtype.is_float():
            numbers = (numbers * EPOCHS[unit]).round().cast(pl.Int64)
        else:
            numbers = numbers.cast(pl.Int64) * EPOCHS[unit]
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"column {numbers.name!r} holds what is no number of {unit} since 1970: {reason}") from error
    micros = numbers // 1000 if unit == "ns" else numbers
    return micros.cast(pl.Datetime("us", dtype.time_zone)).dt.cast_time_unit(dtype.time_unit)


def _check_iso(strings: pl.Series) -> None:
    """Refuse times that do not begin with a year: Polars would take the first number for the day."""
    strange = strings.filter(~strings.str.contains(_ISO))
    if strange.len():
        raise InputError(_not_iso(strange[0], strings.name))


def _not_iso(text: str, name: str) -> str:
    if _DAY_AND_MONTH.fullmatch(text):
        return f"{text!r} in column {name!r} can be read in two ways; set time_format, such as {_pattern(text, True)!r}"
    return (
        f"{text!r} in column {name!r} is not a time as ISO 8601 writes it; set time_format to a pattern such as "
        "'%d/%m/%Y %H:%M', or to s, ms, us or ns for numbers since 1970"
    )


def _not_a_time(strings: pl.Series, dtype: pl.DataType, time_format: str | None) -> str:
    kind, wrong = "time" if isinstance(dtype, pl.Datetime) else "date", strings.drop_nulls()
    try:
        if isinstance(dtype, pl.Datetime):
            tried = strings.str.to_datetime(time_format, time_unit="us", time_zone="UTC", strict=False)
        else:
            tried = strings.str.to_date(time_format, strict=False)
        wrong = strings.filter(tried.is_null() & strings.is_not_null())
    except pl.exceptions.PolarsError:  # no pattern fits the first
        pass
    written = "as ISO 8601 writes it" if time_format is None else f"written as {time_format!r}"
    return f"{str(wrong[0])!r} in column {strings.name!r} is not a {kind} {written}"


# --- how they are written -------------------------------------------------------------------------------------------


def written(strings: pl.Series, time_format: str | None = None) -> Written | None:
    """How a column of text writes times; None if it has none. `time_format` is what a user said of some column."""
    strings = strings.drop_nulls()
    if not strings.len():
        return None
    if time_format is not None and time_format not in EPOCHS:
        dtype = (
            pl.Datetime("us", "UTC" if re.search("%[:#]*z", time_format) else None)
            if _has_hours(time_format)
            else pl.Date()
        )
        if _fits(strings, dtype, time_format):
            return Written(dtype, time_format)
    if strings.str.contains(_ISO).all():
        return _iso(strings)
    if strings.str.contains(_CLOCK).all():
        return None
    return _day_and_month(strings)


def _iso(strings: pl.Series) -> Written | None:
    try:
        dtype = strings.str.to_datetime(time_unit="us").dtype
    except pl.exceptions.PolarsError:
        return None
    return Written(pl.Date() if _fits(strings, pl.Date(), None) else dtype)


def _day_and_month(strings: pl.Series) -> Written | None:
    """A day and a month in the order that some date shows, if all others fit it."""
    parts = strings.str.extract_groups(f"^(?:{_DAY_AND_MONTH.pattern.replace(chr(92) + '2', '[/.-]')})$")
    numbers = [parts.struct.field(field).cast(pl.Int64) for field in ("1", "3")]
    if any(number.null_count() for number in numbers):
        return None
    day_first, month_first = ((number > 12).any() for number in numbers)
    text = str(strings[0])
    dtype = pl.Datetime("us") if ":" in text else pl.Date()
    certain = day_first != month_first and re.match(r"\d+.\d+.\d{4}", text)
    pattern = _pattern(text, bool(day_first))
    if certain and _fits(strings, dtype, pattern):
        return Written(dtype, pattern)
    if day_first and month_first:
        both = [str(strings.filter(number > 12)[0]) for number in numbers]
        return Written(dtype, None, f"no one format fits {both[0]!r} and {both[1]!r} in column {strings.name!r}")
    unlike = strings.filter(numbers[0] != numbers[1])
    shown = str(unlike[0] if unlike.len() else text)
    return Written(
        dtype,
        None,
        f"{_readings(shown, strings.name)}; say --time-format '{_pattern(shown, True)}' or '{_pattern(shown, False)}'",
    )


def _fits(strings: pl.Series, dtype: pl.DataType, time_format: str | None) -> bool:
    try:
        times_of(strings, dtype, time_format)
    except InputError:
        return False
    return True


def _pattern(text: str, day_first: bool) -> str:
    """The pattern of a text that begins with a day and a month."""
    parts = _DAY_AND_MONTH.fullmatch(text)
    assert parts is not None
    _, sign, _, year, gap, clock, seconds, fraction, half = parts.groups()
    date = sign.join(("%d", "%m") if day_first else ("%m", "%d")) + sign + ("%Y" if len(year) == 4 else "%y")
    if clock is None:
        return date
    hours = "%I:%M" if half else "%H:%M"
    ending = "" if half is None else " %p" if half[0] == " " else "%p"
    return f"{date}{gap}{hours}{':%S' if seconds else ''}{'%.f' if fraction else ''}{ending}"


def _readings(text: str, name: str) -> str:
    parts = _DAY_AND_MONTH.fullmatch(text)
    assert parts is not None
    first, _, second, year = parts.groups()[:4]
    if len(year) == 4 and int(first) != int(second) and max(int(first), int(second)) <= 12 and int(first) * int(second):
        days = [f"{int(day)} {month_name[int(month)]}" for day, month in ((first, second), (second, first))]
        return f"{text!r} in column {name!r} is {days[0]} or {days[1]}"
    return f"{text!r} in column {name!r} can be read in two ways"


def _has_hours(time_format: str | None) -> bool:
    return time_format is not None and re.search(r"%[-_0]?[HIklTRXcs+]", time_format) is not None


# --- numbers --------------------------------------------------------------------------------------------------------


def resolution_of(numbers: pl.Series) -> str | None:
    """The unit since 1970 that whole numbers are in, where all of them lie between 2001 and 2286 in just one."""
    least, greatest = numbers.min(), numbers.max()
    if least is None or greatest is None:
        return None
    for unit, digits in _FIRST_DIGITS.items():
        if 10 ** (digits - 1) <= int(least) and int(greatest) < 10**digits:  # type: ignore[arg-type]
            return unit
    return None
