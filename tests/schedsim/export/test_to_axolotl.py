"""axolotl: the same arguments, in its own file."""

from small_exports import loose, tight


def test_it_passes_on_what_the_trainer_takes():
    """Line by line what TRL's configuration has."""
    for make in (loose, tight):
        assert make("axolotl").text == make("trl").text
