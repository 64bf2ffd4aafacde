"""What every page is made of."""

from transformer.maps.report.page import FOLDER, SCRIPTS
from transformer.pages.template import script_of, without_comments


def test_comments_on_lines_of_their_own_go_and_nothing_else_does():
    script = """// What a file is.
/** A doc * with stars **/
const address = "https://a/b"; // behind code a comment stays
  /**
   * Of several lines, with // and `code`.
   */
  act(`/* text */`, a / b); /* stays */
const half = 1 / 2;
"""
    expected = """const address = "https://a/b"; // behind code a comment stays
  act(`/* text */`, a / b); /* stays */
const half = 1 / 2;
"""
    assert without_comments(script) == expected


def test_a_page_carries_its_scripts_without_their_comments():
    own = FOLDER.joined(SCRIPTS)
    whole = script_of(own)
    lines = [line.strip() for line in whole.split("\n")]
    assert not [line for line in lines if line.startswith(("//", "/*", "* ", "*/"))]
    # What is left stands in its order.
    rest = iter(lines)
    kept = [line.strip() for line in without_comments(own).split("\n")]
    assert all(line in rest for line in kept)
    assert len(kept) > 1500
