"""What two tokenizers have in common, token by token."""

from jspec.tokenizer import Tokenizer

__all__ = ["shared_tokens", "stand_ins"]


def shared_tokens(ours: Tokenizer, theirs: Tokenizer, tokens: int) -> dict[int, int]:
    """Our id to theirs, of the tokens that stand for the same bytes in both.

    So a space is the same however a vocabulary writes it. Special tokens are matched
    among themselves, by their names. Where several ids mean the same, the first does.

    Args:
      ours: the target's.
      theirs: the draft model's.
      tokens: ids of ours below it count.
    """
    known: dict[tuple[bool, bytes], int] = {}
    for i in theirs.tokens:
        known.setdefault((theirs.is_added(i), theirs.token_bytes(i)), i)
    shared = {}
    for i in ours.tokens:
        key = ours.is_added(i), ours.token_bytes(i)
        if i < tokens and key[1] and key in known:
            shared[i] = known.pop(key)
    return dict(sorted(shared.items()))


def stand_ins(
    ours: Tokenizer, theirs: Tokenizer, shared: dict[int, int], tokens: int
) -> dict[int, int]:
    """What the draft model reads where a text has a token of ours that it lacks.

    The last of the tokens that it would write the same text with; where that is
    nothing, whatever its id 0 is. Drafts may suffer from it, texts cannot.
    """
    found = {}
    for i in ours.tokens:
        if i < tokens and i not in shared:
            text = ours.token_bytes(i).decode("utf-8", "replace")
            ids = theirs.encode(text, add_special_tokens=False)
            if ids:
                found[i] = ids[-1]
    return found
