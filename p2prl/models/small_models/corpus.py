"""The text that the small model's tokenizer is trained on, generated from word lists: the same on every machine.

A tokenizer learns its entries from the words of a text. So the text holds word problems, numbers in words, arithmetic,
code-like lines, and the words that regular endings and prefixes make of a list of English stems.
"""

from __future__ import annotations

from collections.abc import Iterator

from p2prl.tasks.word_problems.problems import solution, word_problem

FUNCTION_WORDS = """
a about above across after again against all almost along already also although always am among an and another any
anybody anyone anything anywhere are around as at away back be because been before behind being below beside between
beyond both but by can cannot could did do does done down during each either else enough even ever every everybody
everyone everything everywhere except few first for from further had half has have having he her here hers herself
him himself his how however i if in instead into is it its itself just last later least less let like many may maybe
me might mine more most much must my myself near neither never next no nobody none nor not nothing now nowhere of
off often on once one only onto or other others otherwise ought our ours ourselves out outside over own per perhaps
please quite rather same second several shall she should since so some somebody someone something sometimes
somewhere soon still such than that the their theirs them themselves then there therefore these they third this
those though through throughout thus till times to together too toward twice under unless until up upon us very was
we well were what whatever when whenever where wherever whether which while who whole whom whose why will
with within without would yes yet you your yours yourself zero
"""

NOUNS = """
age air animal answer apple arm art baby bag ball bank basket bead bed bird board boat body bone book bottle bowl
box boy branch bread bridge brother bus butter button cake camp candle cap car card carrot cat chair chicken child
church circle city class clock cloud coat coin color cookie corn corner country cow cup day desk dinner dish doctor
dog dollar door dozen dress duck ear earth egg engine eye face family farm farmer father field finger fire fish
floor flower foot forest fox friend fruit game garden girl glass gold grape grass ground group hair hall hand hat
head heart hill hole home horse hour house idea island jar juice key king kitchen knife lake lamp land leaf leg
lemon letter library line lion list machine map marble mark market meal meter milk minute money month moon morning
mother mountain mouse mouth name neck nest night nose notebook number nut ocean office onion orange oven page paint
pair pan paper parent park part party path pear pen pencil penny people person picture piece pig pint place plane
plant plate plum point pond pool potato pound price prize problem puzzle question rabbit rain ribbon river road rock
room root rope rose row sand school score sea seat seed sheep shell ship shirt shoe shop side sister size sky snow
sock song sound space spoon square stamp star station step sticker stone store story street student sugar sum summer
sun table tail tank teacher team test thing ticket tiger time tomato tool tooth town toy track train tray tree truck
uncle valley village voice wall watch water week wheel wind window wing winter wolf woman wood word world yard
year
"""

STEMS = """
accept act add admit adopt advance agree aim allow amount announce answer appear apply approach argue arrange
arrest arrive ask assume attach attack attempt attend attract avoid balance bark base bear beat become begin believe
belong bend bind bite blame bless blow board boil borrow bounce brake break breathe bring brush build burn bury buy
calculate call care carry carve cast catch cause change charge chase check choose claim clean clear climb close
collect combine command compare compete complain complete compose concern connect consider contain continue control
cook copy correct count cover crash create cross crush cry cure curl cut damage dance deal decide declare decorate
define delay deliver demand depend describe desert deserve destroy detect develop differ dig direct discover discuss
display divide double doubt draw dream dress drift drink drive drop dry dust earn eat educate elect employ empty end
enjoy enter equal escape estimate examine excite excuse exist expand expect explain explore express extend face fade
fail fall fasten favor fear feed feel fetch fight fill find finish fire fit fix flash float flow fly fold follow
forget form found frame freeze gain gather give glow govern grab grade grant grow guard guess guide handle hang
happen harm hate heal heap hear heat help hide hit hold hope hunt hurry identify ignore imagine improve include
increase inform insist intend invent invite join joke judge jump keep kick knit knock know label last laugh lay lead
lean learn leave lend level lift light limit link listen live load lock look lose love lower make manage march mark
match matter measure meet melt mend mention mind miss mix model move multiply name need note notice number obey
object observe obtain occur offer open operate order own pack paint park pass paste pause pay perform permit pick
place plan plant play please point polish pour practice praise prefer prepare present press pretend prevent print
produce promise protect prove provide publish pull pump punish push question race raise reach read realize reason
receive record reduce refer reflect refuse regard relate remain remember remove repair repeat replace reply report
represent request require rescue respect rest return reveal reward ride ring rise risk roll round rub rule run rush
sail sample save say scatter score search see seem select sell send separate serve set settle shake shape share shift
shine ship shoot shop short show shut sign simplify sing sink sit sleep slide slip smell smile smooth sort sound
speak spell spend spin split spoil spread spring stand start state stay steal steer step stick stop store stretch
strike study subtract succeed suffer suggest suit sum supply support suppose surprise surround survive swim swing
switch take talk taste teach tear tell tend test thank think throw tie touch trace trade train transfer travel treat
trust try turn twist understand unite use value view visit vote wait wake walk want warm warn wash waste watch wave
wear weave weigh welcome whisper win wipe wish wonder work worry wrap write yield
"""


_PROBLEMS = 2000
"""Word problems of the text."""

_ENDINGS = ("", "s", "ed", "ing", "er", "ers", "able", "ment", "ments", "less", "ness", "ly", "ful", "ingly", "ability")
_PREFIXES = ("", "re", "un", "over", "under", "out", "mis", "pre", "non", "inter")

_UNITS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"


def corpus() -> Iterator[str]:
    """The lines of the text."""
    for number in range(_PROBLEMS):
        problem = word_problem(number)
        yield f"{problem.question}\n{solution(problem)}"
    yield from _numbers()
    yield from _sentences()
    yield from _word_family()


def _numbers() -> Iterator[str]:
    units = [*_UNITS.split(), "eighteen", "nineteen"]
    for number, unit in enumerate(units):
        yield f"{unit} {unit.capitalize()} {number + 1} {unit}-fold"
    for ten in _TENS.split():
        yield " ".join([ten, ten.capitalize(), *(f"{ten}-{unit}" for unit in units[:9])])
    for a in range(20):
        yield "\n".join(f"{a} + {b} = {a + b}; {a} - {b} = {a - b}; {a} * {b} = ({a} * {b}) / 1" for b in range(20))


def _sentences() -> Iterator[str]:
    """Every function word before and after nouns, in lower case and at the start of a sentence."""
    nouns = NOUNS.split()
    for place, word in enumerate(FUNCTION_WORDS.split()):
        noun, other = nouns[place % len(nouns)], nouns[(7 * place + 3) % len(nouns)]
        for _ in range(6):
            yield f"{word.capitalize()} {noun} is {word} the {other}, {word} a {noun}: {word}? {word}!"
    for noun in nouns:
        for _ in range(4):
            yield f"The {noun} and a {noun}. {noun.capitalize()}s of {noun}s, my {noun}'s {noun}."


def _word_family() -> Iterator[str]:
    """Each stem with every ending and prefix, commoner forms more often."""
    for stem in STEMS.split():
        for ending in _ENDINGS:
            word = _join(stem, ending)
            for prefix in _PREFIXES:
                times = (3 if not prefix else 1) + (2 if not ending else 0)
                yield f" {prefix}{word}" * times
            yield f"{word.capitalize()} "


def _join(stem: str, ending: str) -> str:
    """The stem with the ending, spelled by the common rules: make, making; carry, carries."""
    if not ending:
        return stem
    vowel = ending[0] in "aeiou"
    if stem.endswith("e") and vowel:
        return stem[:-1] + ending
    if stem.endswith("y") and stem[-2] not in "aeiou" and not ending.startswith("i"):
        return stem[:-1] + ("ies" if ending == "s" else "i" + ending)
    if ending == "s" and stem.endswith(("s", "x", "z", "ch", "sh")):
        return stem + "es"
    return stem + ending
