# SPDX-License-Identifier: Apache-2.0
"""The little world the demo model learns: a grammar that writes, reads and weighs its own stories.

A chat is a prompt naming two things and a story that uses both. Stories come from the templates
below. In a template {x} is a word list or a reference and [a|b] a choice made on the spot; every
choice is uniform. References agree over the whole story: {1} and {2} are the two things asked for,
{N} the hero's name, {he} {his} {him} the hero's pronouns.

Text and derivation are one-to-one: check_unambiguous() proves it by walking the product of the
grammar with itself. Hence the probability of a story given its prompt is the product of its
choices, and its entropy is known exactly:

    logprob(prompt, reply)   log p of a reply in nats (None when it does not parse)
    entropy(prompt)          the exact expectation of -logprob over replies

Invariants: nouns are single lower-case words, the two nouns of a story differ, and every plot
mentions both roles. Standard library only.
"""
import itertools
import math
import random
import re

# ---------------------------------------------------------------------------------------------
# Nouns. The first two categories are alive ("L"), the others are things ("T").

CATEGORIES = {
    "animal": """fox owl bear rabbit hedgehog badger mouse cat dog goose duck frog toad otter
        beaver squirrel crow raven sparrow robin swan penguin seal whale dolphin octopus crab
        lobster turtle snail spider beetle bee butterfly moth cricket ant ladybird wolf deer moose
        goat sheep pony horse donkey camel llama elephant giraffe lion tiger panda koala kangaroo
        monkey gorilla sloth hippo rhino crocodile lizard snake parrot peacock flamingo pelican
        heron stork eagle falcon bat mole hamster weasel lynx walrus puffin magpie pigeon rooster
        hen pig cow yak ferret salmon shark newt""",
    "person": """dragon wizard witch giant troll goblin ghost mermaid unicorn robot pirate knight
        princess prince king queen astronaut detective gardener painter poet dancer acrobat
        magician farmer fisherman mailman scientist librarian sailor dwarf elf fairy phoenix
        griffin snowman scarecrow vampire ogre nurse""",
    "tool": """lantern umbrella clock key compass telescope ladder teapot kettle mirror candle
        bucket broom pillow blanket basket bottle button book map letter pencil paintbrush hammer
        anchor bell balloon kite marble puzzle spoon bowl teacup chair table bed carpet hourglass
        lamp camera needle rope shovel wheelbarrow suitcase treasure crown coin sword shield wand
        cauldron typewriter radio magnet toaster bathtub window door chimney""",
    "food": """pancake muffin cookie pie cake sandwich pickle carrot potato onion tomato turnip
        cabbage apple pear plum cherry lemon peach banana strawberry biscuit dumpling pretzel
        waffle noodle cheese sausage omelette doughnut""",
    "music": """violin trumpet drum flute piano harp accordion guitar banjo tuba ukulele cello
        trombone whistle xylophone tambourine bagpipe harmonica""",
    "wear": """hat scarf coat boot sock mitten cloak ring necklace sweater apron glove slipper
        bonnet helmet cape ribbon dress""",
    "ride": """boat ship train bicycle wagon sled rocket submarine tractor truck bus canoe raft
        scooter airplane carriage""",
    "nature": """acorn feather pebble seashell pumpkin sunflower rose tulip mushroom star cloud
        snowflake leaf tree daisy moonbeam pinecone cactus""",
}
CATEGORIES = {c: w.split() for c, w in CATEGORIES.items()}
CATEGORY = {n: c for c, ns in CATEGORIES.items() for n in ns}
NOUNS = list(CATEGORY)
ALIVE = ("animal", "person")


def kind_of(category):
    return "L" if category in ALIVE else "T"


def article(word):
    """'a' or 'an', by sound for the words of this grammar and by letter for others."""
    if re.match(r"un[i]|uk|ute|eu|one(?![a-z])", word):
        return "a"
    return "an" if word[0] in "aeiou" or word.startswith(("hour", "honest")) else "a"


# ---------------------------------------------------------------------------------------------
# Word lists, comma separated; {a.list} adds the article.

ADJECTIVES = {
    "animal": """small, sleepy, clever, shy, hungry, curious, muddy, elderly, polite, grumpy,
        enormous, talkative, nervous, scruffy, elegant, lonely""",
    "person": """small, sleepy, clever, shy, forgetful, curious, cheerful, elderly, polite, grumpy,
        enormous, talkative, nervous, invisible, famous, lonely""",
    "tool": """rusty, golden, old, wooden, silver, dusty, tiny, crooked, magic, blue, heavy,
        cracked, borrowed, forgotten""",
    "food": """warm, sweet, giant, golden, sticky, tiny, spicy, delicious, crooked, magic, famous,
        stolen, buttery, suspicious""",
    "music": """rusty, golden, old, wooden, silver, dusty, tiny, squeaky, magic, red, loud,
        out-of-tune, borrowed, haunted""",
    "wear": """woolly, golden, old, velvet, silver, stripy, tiny, itchy, magic, green, oversized,
        purple, borrowed, spotted""",
    "ride": """rusty, golden, old, wooden, silver, noisy, tiny, wobbly, magic, yellow, speedy,
        homemade, borrowed, leaky""",
    "nature": """glowing, golden, ancient, velvety, silver, perfect, tiny, crooked, magic, blue,
        enormous, frosty, lucky, whispering""",
}
# What a noun of the category may do: "The fox ____."
DOES = {
    "animal": """yawned, sneezed twice, winked, turned in circles, twitched its nose, said nothing,
        stamped its feet, rolled over, blinked slowly, giggled""",
    "person": """yawned, sneezed twice, winked, bowed deeply, burst into song, said nothing,
        clapped politely, sat down, blushed, giggled""",
    "tool": """rattled, began to glow, tipped over, creaked, trembled, floated upward, went missing,
        grew warm, sparkled, hummed quietly""",
    "food": """smelled wonderful, began to steam, rolled away, wobbled, grew bigger, floated upward,
        went missing, turned bright pink, sparkled, hummed quietly""",
    "music": """played one long note, began to glow, tipped over, squeaked, trembled,
        floated upward,
        went missing, played by itself, sparkled, hummed quietly""",
    "wear": """changed color, began to glow, slid to the floor, fluttered, grew longer,
        floated upward,
        went missing, tied itself in a knot, sparkled, tickled""",
    "ride": """rumbled, began to glow, rolled backward, creaked, lurched, floated upward,
        went missing,
        coughed out smoke, sparkled, set off alone""",
    "nature": """rustled, began to glow, drifted sideways, shivered, grew bigger, floated upward,
        went missing, whispered a secret, sparkled, hummed quietly""",
}
LISTS = {
    "place": """a village by the sea, a town full of bridges, a valley of apple trees,
        a castle with no roof, the last house on the hill, a harbor at the edge of the map,
        a city of a hundred towers, a cottage in the pine woods, a lighthouse on a rock,
        a windmill above the river, a hut on an island shaped like a shoe, a street of tiny shops,
        a desert of blue sand, a kingdom nobody could spell, a mountain made of glass,
        a forest that hummed, a swamp with excellent soup, a market under the stars,
        a tower with too many stairs, a garden behind a wall, a town where it always rained,
        a houseboat on a lazy canal, a cave behind a waterfall, a village on stilts,
        a library beneath a lake, a meadow at the end of the road, a bakery on the moon,
        a land of very polite clouds, an inn between two rivers, a barn on a floating hill""",
    "heroadj": """young, quiet, stubborn, brave, dreamy, clumsy, patient, cheerful, absent-minded,
        gentle, restless, hopeful, careful, retired, barefoot, honest, tired, merry, lanky, proud,
        bold, wise, sleepless, thrifty""",
    "role": """baker, clockmaker, beekeeper, tailor, cobbler, lamplighter, mapmaker, potter, weaver,
        candlemaker, shepherd, boatbuilder, bookbinder, juggler, locksmith, glassblower, miller,
        inventor, toymaker, stargazer, innkeeper, barber, woodcutter, cook, piano tuner, carpenter,
        florist, soapmaker, storyteller, bell-ringer""",
    "trait": """never left home without a notebook, could whistle in three languages,
        was afraid of nothing except soup, collected interesting holes,
        had the loudest laugh in town,
        always wore two watches, talked to the weather, slept with the windows open,
        had once met a comet, counted stairs for fun, kept a diary of smells,
        knew every cloud by name, could not resist a riddle, had been saving up for a hill,
        was good at nearly everything but mornings, believed every rumor, owed the moon a favor,
        liked rain more than most people do, had a pocket for every day of the week,
        sang to the furniture, hummed while thinking, had never lost a staring contest,
        was famous for terrible jokes, walked backward on Sundays""",
    "dayadj": """foggy, windy, golden, rainy, snowy, bright, gloomy, silent, sticky, stormy, frosty,
        peculiar, breezy, ordinary, moonlit, chilly""",
    "day": """morning, evening, afternoon, night, Monday, Tuesday, Friday, Sunday, Thursday,
        Saturday""",
    "instant": """the stroke of midnight, the crack of dawn, half past seven, lunchtime, sunset,
        exactly the wrong moment, the end of summer, the first snow""",
    "spot": """under the bridge, behind the bakery, in the attic, at the bottom of the well,
        beside the pond, on the roof, inside a hollow oak, at the crossroads, below the stairs,
        on the doorstep, next to the fountain, in the tall grass, at the top of the tower,
        behind a curtain, near the old mill, in the middle of the road, on a park bench,
        between two haystacks""",
    "route": """around the lake, over the hill, through the market, across the frozen river,
        up the tallest tower, down the longest street, to the lighthouse, past the graveyard,
        along the harbor wall, to the edge of the wood""",
    "topic": """the color of the sea, who was taller, the best kind of soup, what the moon weighs,
        the rules of chess, how to fold a sheet, the meaning of Tuesday, where the wind goes,
        whose turn it was, a missing teaspoon, the proper way to sneeze, last year's harvest,
        the number of stars, when to plant beans""",
    "prize": """a jar of honey, a medal made of tin, a new pair of shoes, a slice of moonlight,
        three wishes, a barrel of plums, a song, a holiday by the sea, a handful of seeds,
        a very long nap, a bag of peppermints, a silver thimble, a kiss on the nose,
        a house of straw,
        a ticket to the circus, half a kingdom""",
    "meal": """leek soup, warm bread, toast and jam, chestnuts, ginger tea, porridge, fried eggs,
        rice pudding, hot chocolate, mashed turnips, beans on toast, blackberry tart""",
    "mood": """happy, proud, puzzled, relieved, grateful, amazed, delighted, content, calm,
        speechless,
        breathless, hopeful, sleepy, giddy, wiser, thoughtful""",
    "manner": """very slowly, at once, with great care, without a word, for an hour, in secret,
        on tiptoe, by candlelight, with a grin, in the rain, with both eyes closed,
        rather loudly""",
    "dream": """flying, the sea, faraway hills, dancing lamps, endless stairs, old friends,
        warm snow,
        singing fish, spring, tomorrow, a bigger kitchen, trains, sleepy volcanoes, paper boats""",
    "skill": """dance, sing, swim, whistle, juggle, bake bread, play chess, tell jokes,
        paint clouds,
        walk on stilts, read maps, keep a secret, skip stones, stand on one leg""",
    "count": "two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, a hundred",
    "units": "days, nights, hours, weeks, lessons, attempts, mistakes, cups of tea",
    "machine": """made rain, peeled eggs, sang lullabies, brushed hair, caught dreams,
        chased away fog,
        sorted socks, tickled feet, answered letters, woke up roosters, painted fences, warmed toes,
        predicted soup, folded the laundry""",
    "relative": """grandmother, grandfather, aunt, uncle, cousin, sister, brother, neighbor,
        teacher,
        godmother, best friend, landlord""",
    "never": """argue with the moon, trust a quiet kettle, skip breakfast, whisper near a goose,
        lend your umbrella to the wind, laugh at small things, refuse an invitation,
        hurry past a mystery, count on Tuesdays, close a door in anger, judge a gift by its box,
        wake a sleeping giant, give up before supper, say no to dessert""",
    "moral": """kindness is never wasted, two heads are better than one, small friends matter most,
        every door has a key, patience is a kind of magic, a shared lunch is the best lunch,
        even the wind needs a rest, home is where the soup is, luck likes good company,
        it never hurts to ask, the best treasure is a good story, nobody is lost for long""",
    "feeling": """joy, surprise, relief, laughter, pride, wonder, gratitude, embarrassment""",
    "watcher": """the mayor, the whole town, an old sailor, the baker's dog, the night watchman,
        a cat on the wall, the postmaster, a passing cloud, the miller's son, the moon""",
}
NAMES = {
    "she": """Nora Odette Clara Mabel Ivy Wilma Greta Luna Pia Tilda Hazel Ada Rosa Willow Ingrid
        Beatrix Flora Marta Juno Edith Salma Yuki Priya Amara Lotte""",
    "he": """Oscar Felix Theo Milo Hugo Otto Barnaby Jasper Emil Arlo Finn Leo Walter Casper Bruno
        Rupert Silas Tomas Ravi Kofi Omar Kenji Ned Gus Albert""",
}
PRONOUN = {n: p for p, ns in NAMES.items() for n in ns.split()}
FORMS = {
    "she": {"he": "she", "He": "She", "his": "her", "His": "Her", "him": "her", "self": "herself"},
    "he": {"he": "he", "He": "He", "his": "his", "His": "His", "him": "him", "self": "himself"},
}

# ---------------------------------------------------------------------------------------------
# Story templates. One line is one alternative.

TEMPLATES = {
    "time": """
        One {dayadj} {day}
        At {instant}
        """,
    "who": "{a.heroadj} {role}",
    "open": """
        Once upon a time, in {place}, there lived {who} named {hero}.
        Long ago, {who} named {hero} lived in {place}.
        In {place} there was once {who} called {hero}.
        There was once {who} called {hero}, who lived in {place}.
        {hero} was {who} in {place}.
        This is the story of {hero}, {who} from {place}.
        """,
    "trait_s": "{He} {trait}.",
    "end": """
        From that day on, the {1} and the {2} were never far apart.
        {N} went home {mood}, thinking of the {1} and the {2}.
        That night {N} slept soundly and dreamed of {dream}.
        {N} laughed until {his} hat fell off, and everyone felt {mood}.
        To this day, {watcher} still [smiles|sighs|sings|wonders] about the {1} and the {2}.
        Everyone was {mood}, especially the {2}.
        Everyone was {mood}, especially {N}.
        And if you visit {N}, {he} will [tell you all about it|offer you {meal}|show you the {2}].
        And so {N} learned to {skill}, and the {1} {does1}.
        After that, {N} was never [bored|lonely|late|gloomy] again.
        """,
    "moral_s": """
        And that is why you should never {never}.
        For {moral}.
        """,
}
# A plot is its sentences in order; each sentence lists its alternatives. {1} and {2} are alive in
# LL, {1} is alive and {2} a thing in LT, both are things in TT.
PLOTS = {
    "LL": [
        ["""{time}, {aj1} {1} challenged {aj2} {2} to a race {route}.
            {time}, {a1} and {a2} held a race {route}.""",
         """The {1} [ran|hopped|skated|galloped] {manner}, while the {2} {does2}.
            The {2} took the lead, but then the {1} {does1}.""",
         """It ended in a tie, so {N} gave them both {prize}.
            {N} declared the {2} the winner and handed over {prize}."""],
        ["""{time}, {N} found {aj1} {1} and {aj2} {2} arguing about {topic} {spot}.
            {time}, {aj1} {1} and {aj2} {2} came to {N} to settle a quarrel about {topic}.""",
         """The {1} shouted, the {2} {does2}, and {watcher} [stared|took notes|covered both ears].
            Neither the {1} nor the {2} would give in.""",
         """{N} served them {meal}, and soon nobody remembered the quarrel.
            Then {N} [sneezed|giggled|yawned|began to sing], and the quarrel ended in {feeling}."""],
        ["""{time}, {aj1} {1} knocked on {his} door, because the {2} was missing.
            {time}, {aj1} {1} asked {N} to help find a lost {2}.""",
         """They searched {manner}, first {spot} and then {spot}.
            They followed a trail of [crumbs|footprints|feathers|buttons|glitter] {route}.""",
         """The {2} was {spot}, [eating|hiding|fast asleep|practicing the violin|writing a poem].
            At last they found the {2} {spot}, and the {1} wept with {feeling}."""],
        ["""{time}, {N} threw a party {spot} for {aj1} {1}.
            {time}, {N} baked a cake for the birthday of {aj1} {1}.""",
         """{A.adj2} {2} arrived late, carrying {prize}.
            Nobody had invited the {2}, who came anyway and brought {prize}.""",
         """The {1} and the {2} danced {manner} until {watcher} joined in.
            The {1} made a speech about {topic}, and the {2} {does2}."""],
        ["""{time}, {a1} decided to stage a play about {topic}.
            {time}, {aj1} {1} opened a tiny theater {spot}.""",
         """{N} painted the scenery, and {aj2} {2} played the [hero|villain|tree|moon].
            The star of the show was {aj2} {2}, who forgot every line.""",
         """When the curtain fell, the {2} {does2} and {watcher} cheered.
            The show ran for {count} {units}, and the {1} {does1}."""],
        ["""{time}, {N} met {a1} who wanted to learn to {skill}.
            {time}, {aj1} {1} begged {N} for a teacher.""",
         """They asked {aj2} {2}, who agreed in exchange for {prize}.
            {aj2c} {2} offered lessons {spot}.""",
         """After {count} {units}, the {1} was better at it than the {2}.
            It took {count} {units}, but the {2} never lost patience with the {1}."""],
        ["""{time}, {N} delivered a letter from {aj1} {1} to {aj2} {2}.
            {time}, {aj1} {1} asked {N} to write a letter to {aj2} {2}.""",
         """It was about {topic}, and it smelled of {meal}.
            The letter said only this: meet me {spot}.""",
         """The {2} read it {count} times and {does2}.
            The {2} ran {route} to thank the {1} in person."""],
        ["""{time}, a storm blew {a1} and {a2} straight into {his} kitchen.
            {time}, {aj1} {1} and {aj2} {2} asked {N} for shelter from the storm.""",
         """{N} gave the {1} {meal} and gave the {2} {meal}.
            They passed the hours talking about {topic}, and the {1} {does1}.""",
         """By morning the storm was over, and the {2} left {prize} as thanks.
            When the sky cleared, the {1} and the {2} fixed the roof {manner}."""],
    ],
    "LT": [
        ["""{time}, {aj1} {1} gave {N} {aj2} {2}.
            {time}, {aj1} {1} left {aj2} {2} {spot} for {N} to find.""",
         """As soon as {he} touched the {2}, it {does2}.
            {N} thanked the {1} {manner} and took the {2} home.""",
         """In return {he} gave the {1} {prize}.
            The {1} {does1} and asked only for {meal}."""],
        ["""{time}, {N} met {aj1} {1} guarding {aj2} {2} {spot}.
            {time}, {N} heard of {aj2} {2} guarded by {aj1} {1}.""",
         """Nobody could pass without a riddle about {topic}.
            The {1} had not slept for {count} {units}.""",
         """{N} [sang|whispered|explained|bowed] {manner}, and the {1} handed over the {2}.
            {N} offered {meal}, and the {1} happily shared the {2}."""],
        ["""{time}, {aj1} {1} was crying {spot} over a lost {2}.
            {time}, {aj1} {1} asked {N} to look for a missing {2}.""",
         """{N} searched {spot}, {spot} and even {spot}.
            {N} asked {watcher}, who only shrugged.""",
         """Suddenly the {2} {does2}, and there it was, {spot}.
            It turned out that {his} {relative} had borrowed the {2} to {skill}."""],
        ["""{time}, {N} showed {aj2} {2} to {a1} who had never seen one.
            {time}, {aj1} {1} saw {a2} for the very first time.""",
         """The {1} sniffed it, poked it and {does1}.
            The {1} thought that it was [a hat|a friend|a kind of soup|the moon|a musical fruit].""",
         """{N} explained the {2} {manner}, and it took {count} {units}.
            {N} laughed so hard that the {2} {does2}."""],
        ["""{time}, {aj1} {1} came to {N} and asked to buy {a2}.
            {time}, {aj1} {1} walked in and pointed at {his} {2}.""",
         """{N} wanted {prize} for it, but the {1} had only {prize}.
            The {1} offered {prize}, and {N} asked for {count} {units} to think.""",
         """They shook hands, and the {1} carried the {2} away {manner}.
            In the end {N} gave the {2} away for {meal} and a good joke."""],
        ["""{time}, {aj1} {1} got stuck {spot} together with {aj2} {2}.
            {time}, {N} found {aj1} {1} asleep beside {aj2} {2} {spot}.""",
         """{N} pulled, {watcher} pulled, and the {1} {does1}.
            {N} poured {meal} on the {2}, which helped a little.""",
         """With a loud pop, the {1} was free and the {2} {does2}.
            The {1} woke up and offered {him} {prize} and the {2}."""],
        ["""{time}, {N} built {a2} so strange that {a1} came {route} to see it.
            {time}, {N} gave {aj1} {1} {aj2} {2} to look after.""",
         """For {count} {units} all was well, until the {2} {does2}.
            The {1} polished the {2} {manner}, and it {does2}.""",
         """The {1} {does1} and then the whole town heard about it.
            {watcherc} offered {prize} for it, but the {1} refused."""],
        ["""{time}, {aj1} {1} told {N} that the moon was really {a2}.
            {time}, {N} and {aj1} {1} set out to hang {a2} in the sky.""",
         """They climbed {route} to get a closer look, and the {1} {does1}.
            It took a ladder, {prize} and {count} {units}.""",
         """Up there they found {aj2} {2}, exactly where the {1} had said.
            Now a {2} shines over the town, and the {1} waves at it."""],
        ["""{time}, {aj1} {1} stole {his} {2} and ran {route}.
            {time}, {N} noticed that {aj1} {1} had taken {his} {2}.""",
         """{N} followed {manner} and found the thief {spot}.
            The thief left behind only {prize} and a note about {topic}.""",
         """The {1} {does1} and said sorry, for the {2} was meant for {his} birthday.
            The {1} gave the {2} back with {prize}, and {N} forgave everything."""],
        ["""{time}, {N} held a contest for the best portrait of {a2}.
            {time}, {aj1} {1} painted {aj2} {2} on {his} front door.""",
         """The {1} painted {manner} with a brush dipped in {meal}.
            When {watcher} saw the painted {2}, it {does2}.""",
         """The {1} won {prize}, and the painting hangs {spot}.
            Soon the {1} was painting {a2} on every door in town."""],
    ],
    "TT": [
        ["""{time}, {N} found {aj1} {1} and {aj2} {2} {spot}.
            {time}, {N} tripped over {aj1} {1} and landed on {aj2} {2}.""",
         """When {he} picked up the {1}, the {2} {does2}.
            Nobody knew who owned the {1}, not even {watcher}.""",
         """{N} put the {1} and the {2} side by side, and both of them [glowed|sang|vanished|danced].
            {His} {relative} said that the {2} was worth {prize}."""],
        ["""{time}, {N} went to the market and traded {aj1} {1} for {aj2} {2}.
            {time}, a stranger offered {N} {aj2} {2} for {his} {1}.""",
         """It seemed a fair trade until the {2} {does2}.
            On the way home {he} also traded {prize} for {meal}.""",
         """So {N} ran back {route}, but the {1} was gone.
            In the end {N} got the {1} back for {prize} and kept the {2} too."""],
        ["""{time}, {N} joined {a1} to {a2} and built a machine that {machine}.
            {time}, {N} needed {a1} and {a2} for a machine that {machine}.""",
         """{He} worked {spot} for {count} {units}.
            It coughed, it shook, and the {1} {does1}.""",
         """When {watcher} pulled the lever, the {2} {does2}.
            The machine won {prize}, though the {2} had to be replaced."""],
        ["""{time}, {his} {relative} sent {N} {aj1} {1} in a box.
            {time}, {N} inherited {aj1} {1} from {his} {relative}.""",
         """Inside it was a note: find the {2} {spot}.
            A tiny voice in the {1} told {him} to look for {a2} {spot}.""",
         """{N} went there {manner}, and sure enough, there was {aj2} {2}.
            Together the {1} and the {2} opened a door to {place}."""],
        ["""{time}, {watcher} promised {aj2} {2} to anyone who could {skill} with {a1}.
            {time}, {N} entered a contest to balance {a1} on top of {a2}.""",
         """{N} practiced {manner} for {count} {units}.
            {N} dropped the {1} {count} times, and each time it {does1}.""",
         """On the great day the {1} {does1}, and {N} won.
            {N} lost, but {watcher} gave {him} the {2} and {prize}."""],
        ["""{time}, {N} rubbed {aj1} {1}, and it offered {him} a wish.
            {time}, {aj1} {1} rolled up to {N} and promised {him} a wish.""",
         """{N} thought about it {manner} and wished for {a2}.
            {He} could have had {prize}, but {he} wished for {aj2} {2}.""",
         """There was a flash, the {1} {does1}, and the {2} appeared {spot}.
            The {2} came with {prize}, and the {1} looked almost {mood}."""],
        ["""{time}, someone took {his} {1} and left {aj2} {2} in its place.
            {time}, {N} woke up and found {aj2} {2} where {his} {1} had been.""",
         """{N} questioned {watcher} about it {manner}.
            The only clue was a smell of {meal} {spot}.""",
         """It was {his} {relative}, who needed the {1} to {skill}.
            The {1} came home after {count} {units}, and {he} kept the {2} as well."""],
        ["""{time}, the moon asked {N} to lend it {a1}.
            {time}, the moon came down to borrow {his} {1}.""",
         """In return it left {aj2} {2} {spot}.
            {N} agreed {manner} and got {a2} as a promise.""",
         """Ever since, the {1} [glows|floats|sleeps|sings] among the stars, and the {2} keeps {him} company.
            On clear nights the {2} {does2} and the {1} winks back from the sky."""],
    ],
}

# ---------------------------------------------------------------------------------------------
# Prompts. @ is the pair of things ("a fox and a lantern"), # a single one.

PROMPTS_TWO = """Tell me a story about @.|Please tell me a story about @.
Tell me a story about @, please.
Tell me a short story about @.|Tell a story about @.|Write a story about @.
Write me a story about @.
Please write a story about @.|Write a short story with @.|Write a little tale about @.
A story about @.|A story about @, please.|A short story with @, please.|Story about @.
I want a story about @.|I want to hear a story about @.|I would like a story about @.
I would like to hear a tale about @, please.|I'd like a story with @ in it.|Give me a story about @.
Give me a tale of @.|Make up a story about @.|Please make up a story with @ in it.
Invent a tale about @.
Tell me something about @.|Tell us a story about @.|Tell me a bedtime story about @.
A bedtime story with @, please.|Let's hear a story about @.|How about a story with @?
Can you tell me a story about @?|Could you tell me a story about @?
Could you write a story about @, please?
Will you tell me a story about @?|Do you know a story about @?|May I have a story about @?
Can I have a story with @?|Would you tell me a tale of @?|Hello! Tell me a story about @.
Hi, can you tell me a story about @?|Spin me a yarn about @.|Make me smile with a story about @.
My daughter wants a story about @.|My son asked for a story about @.|The story should be about @.
Once more: a story about @.|Now one about @.|Another story, with @.|Another one, about @, please.
Next, a tale about @.|And now a story about @.|Something with @.|@|@, please."""
PROMPTS_ONE = """Tell me a story about #.|Please tell me a story about #.|A story with #, please.
Write a story about #.|Can you tell me a story about #?|Do you know a tale about #?"""
PROMPTS_NONE = """Tell me a story.|Please tell me a story.|Another one, please.|Surprise me.
A story, please.
Tell me a bedtime story.|Can you tell me a story?|Another story!|One more, please.|Write a story."""
SMALL_TALK = {
    "hello": ("Hello.|Hi.|Hey.|Hello there.|Good morning.|Good evening.|Hi there!|"
              "Hello, how are you?",
              "Hello! Name two things, and I will tell you a story about them.|"
              "Good day! Which two things shall I tell you a story about?|"
              "Hi! Ask me for a story about, say, {a.n} and {a.n2}."),
    "who": ("Who are you?|What are you?|What can you do?|What is this?|Help.|What do you know?",
            "I am a very small language model, and I tell stories about any two things you name.|"
            "I am a storyteller with about three million parameters. Name two things!|"
            "I tell little stories. Ask me for one about {a.n} and {a.n2}."),
    "thanks": ("Thank you.|Thanks!|Thanks a lot.|That was lovely.|Nice story.|Good night.|Bye.|"
               "Goodbye.",
               "You are welcome! Another story, perhaps?|My pleasure. Come back soon!|"
               "Thank you for listening. Sleep well!|Any time. The {n} sends its regards."),
}


def _options(text):
    return [" ".join(x.split()) for x in re.split(r"[|\n]", text) if x.strip()]


PROMPTS_TWO, PROMPTS_ONE, PROMPTS_NONE = map(_options, (PROMPTS_TWO, PROMPTS_ONE, PROMPTS_NONE))

# ---------------------------------------------------------------------------------------------
# Templates become node lists. A node is
#   ("s", text)             literal
#   ("w", words)            uniform choice of a literal
#   ("c", sequences)        uniform choice of a sequence
#   ("k", table, role)      uniform choice of a literal by the category of the role's noun
#   ("r", name)             agreement: text taken from the environment
#   ("h",)                  the hero's name, chosen here

_LIST = {k: [" ".join(w.split()) for w in v.split(",")] for k, v in LISTS.items()}
_ADJ = {c: [w.strip() for w in v.split(",")] for c, v in ADJECTIVES.items()}
_DOES = {c: [" ".join(w.split()) for w in v.split(",")] for c, v in DOES.items()}
_AADJ = {c: [article(w) + " " + w for w in v] for c, v in _ADJ.items()}
_ACADJ = {c: [w[0].upper() + w[1:] for w in v] for c, v in _AADJ.items()}
_NAMES = list(PRONOUN)
_REFS = {"1", "2", "a1", "a2", "N", "he", "He", "his", "His", "him", "self"}


def _capital(s):
    return s[0].upper() + s[1:]


def _slot(name):
    if name in _REFS:
        return ("r", name)
    if name == "hero":
        return ("h",)
    if name in ("aj1", "aj2"):
        return ("k", _AADJ, name[-1])
    if name in ("A.adj2", "aj2c"):
        return ("k", _ACADJ, "2")
    if name in ("does1", "does2"):
        return ("k", _DOES, name[-1])
    if name.startswith("a."):
        return ("w", [article(w) + " " + w for w in _LIST[name[2:]]])
    if name == "watcherc":
        return ("w", [_capital(w) for w in _LIST["watcher"]])
    if name in TEMPLATES:
        return _choice(TEMPLATES[name].strip().split("\n"))
    return ("w", _LIST[name])


def _compile(template):
    """Template text to node list; [..|..] may hold slots but no further brackets."""
    seq = []
    for part in re.findall(r"\[[^\]]*\]|\{[^}]*\}|[^\[{]+", " ".join(template.split())):
        if part[0] == "[":
            seq.append(_choice(part[1:-1].split("|")))
        elif part[0] == "{":
            seq.append(_slot(part[1:-1]))
        else:
            seq.append(("s", part))
    return seq


def _choice(options):
    seqs = [_compile(o) for o in options]
    if all(len(q) == 1 and q[0][0] == "s" for q in seqs):
        return ("w", [q[0][1] for q in seqs])
    return ("c", seqs)


def _build_stories():
    """kind -> one node: opening, maybe a trait, one of the plots, ending, maybe a moral."""
    maybe_trait = ("c", [[("s", " ")], [("s", " "), _slot("trait_s"), ("s", " ")]])
    maybe_moral = ("c", [[], [("s", " "), _slot("moral_s")]])
    ending = ("c", [[_slot("end"), maybe_moral]])
    stories = {}
    for kind, plots in PLOTS.items():
        seqs = []
        for plot in plots:
            seq = []
            for sentence in plot:
                seq += [_choice(sentence.strip().split("\n")), ("s", " ")]
            seqs.append(seq)
        stories[kind] = ("c", [[_slot("open"), maybe_trait, ("c", seqs), ending]])
    return stories


STORY = _build_stories()

# ---------------------------------------------------------------------------------------------
# Writing


def _env(noun1, noun2, category1, category2):
    return {"1": noun1, "2": noun2, "a1": article(noun1) + " " + noun1,
            "a2": article(noun2) + " " + noun2, "k1": category1, "k2": category2}


def _write(node, env, rng, out):
    tag = node[0]
    if tag == "s":
        out.append(node[1])
    elif tag == "w":
        out.append(rng.choice(node[1]))
    elif tag == "r":
        out.append(env[node[1]])
    elif tag == "k":
        out.append(rng.choice(node[1][env["k" + node[2]]]))
    elif tag == "c":
        for n in rng.choice(node[1]):
            _write(n, env, rng, out)
    else:
        name = rng.choice(_NAMES)
        env["N"] = name
        env.update(FORMS[PRONOUN[name]])
        out.append(name)


def _castings(nouns):
    """All ways to cast two given nouns: (noun1, noun2, category1, category2, probability)."""
    choices = [[(n, CATEGORY[n], 1.0)] if n in CATEGORY else
               [(n, "animal", 0.5), (n, "tool", 0.5)] for n in nouns]
    for x, y in itertools.product(*choices):
        p = x[2] * y[2]
        kx, ky = kind_of(x[1]), kind_of(y[1])
        if kx == ky:
            yield x[0], y[0], x[1], y[1], p / 2
            yield y[0], x[0], y[1], x[1], p / 2
        else:
            a, b = (x, y) if kx == "L" else (y, x)
            yield a[0], b[0], a[1], b[1], p


def write_story(nouns, rng):
    """A story about two different nouns; nouns outside the grammar count as animal or tool."""
    casts = list(_castings(nouns))
    n1, n2, c1, c2, _ = rng.choices(casts, [c[4] for c in casts])[0]
    out = []
    _write(STORY[kind_of(c1) + kind_of(c2)], _env(n1, n2, c1, c2), rng, out)
    return "".join(out)


def made_up_noun(rng):
    """A pronounceable word that the grammar does not hold: it teaches the model to copy."""
    while True:
        word = "".join(rng.choice(["b", "br", "c", "ch", "d", "dr", "f", "fl", "g", "gr", "h", "j",
                                   "k", "l", "m", "n", "p", "pl", "qu", "r", "s", "sh", "sp", "st",
                                   "t", "th", "tr", "v", "w", "y", "z", ""]) +
                       rng.choice(["a", "e", "i", "o", "u", "ai", "ea", "ee", "oo", "ou"]) +
                       rng.choice(["", "b", "ck", "d", "g", "l", "m", "n", "ng", "p", "r", "s", "t",
                                   "x", "rd", "nk", "st"])
                       for _ in range(rng.choice([1, 2, 2, 3])))
        if len(word) > 2 and word not in CATEGORY:
            return word


def _noun_phrase(nouns, rng):
    r = rng.random()
    if r < 0.8:
        parts = [article(n) + " " + n for n in nouns]
    elif r < 0.9:
        parts = ["the " + n for n in nouns]
    else:
        parts = list(nouns)
    return " and ".join(parts)


def _dress(prompt, rng):
    """Vary case and final punctuation as people do."""
    if rng.random() < 0.25:
        prompt = prompt[0].lower() + prompt[1:]
    elif prompt[0].islower() and rng.random() < 0.5:
        prompt = _capital(prompt)
    if prompt[-1] in ".!?":
        r = rng.random()
        if r < 0.25:
            prompt = prompt[:-1]
        elif r < 0.3 and prompt[-1] == ".":
            prompt = prompt[:-1] + "!"
    return prompt


def write_prompt(rng, nouns=()):
    """A request about two nouns, one, or none."""
    bank = (PROMPTS_NONE, PROMPTS_ONE, PROMPTS_TWO)[len(nouns)]
    template = rng.choice(bank)
    return _dress(template.replace("@", "#").replace("#", _noun_phrase(nouns, rng)), rng)


def write_pair(rng):
    """The graded task: (prompt, reply) about two distinct nouns of the grammar."""
    nouns = rng.sample(NOUNS, 2)
    return write_prompt(rng, nouns), write_story(nouns, rng)


def write_turn(rng):
    """One exchange of the training mix: mostly write_pair, sometimes something else."""
    r = rng.random()
    if r < 0.80:
        return write_pair(rng)
    if r < 0.92:
        nouns = [made_up_noun(rng), rng.choice(NOUNS) if rng.random() < 0.5 else made_up_noun(rng)]
        rng.shuffle(nouns)
        if nouns[0] == nouns[1]:
            return write_pair(rng)
        return write_prompt(rng, nouns), write_story(nouns, rng)
    if r < 0.97:
        nouns = rng.sample(NOUNS, 2)
        return write_prompt(rng, nouns[:rng.randrange(2)]), write_story(nouns, rng)
    prompts, replies = SMALL_TALK[rng.choice(list(SMALL_TALK))]
    a, b = rng.sample(NOUNS, 2)
    reply = rng.choice(_options(replies))
    for slot, text in (("{a.n2}", article(b) + " " + b), ("{a.n}", article(a) + " " + a),
                       ("{n}", a)):
        reply = reply.replace(slot, text)
    return _dress(rng.choice(_options(prompts)), rng), reply


# ---------------------------------------------------------------------------------------------
# Reading and weighing


def _read(seq, i, text, pos, env):
    """Yield (end, log p) of every way in which seq[i:] matches text from pos to its very end."""
    if i == len(seq):
        if pos == len(text):
            yield 0.0
        return
    node, tag = seq[i], seq[i][0]
    if tag == "s" or tag == "r":
        s = node[1] if tag == "s" else env[node[1]]
        if text.startswith(s, pos):
            yield from _read(seq, i + 1, text, pos + len(s), env)
    elif tag == "c":
        lp = -math.log(len(node[1]))
        for option in node[1]:
            for q in _read(option + seq[i + 1:], 0, text, pos, env):
                yield lp + q
    elif tag == "h":
        lp = -math.log(len(_NAMES))
        for name in _NAMES:
            if text.startswith(name, pos):
                inner = dict(env, N=name, **FORMS[PRONOUN[name]])
                for q in _read(seq, i + 1, text, pos + len(name), inner):
                    yield lp + q
    else:
        words = node[1] if tag == "w" else node[1][env["k" + node[2]]]
        lp = -math.log(len(words))
        for w in words:
            if text.startswith(w, pos):
                for q in _read(seq, i + 1, text, pos + len(w), env):
                    yield lp + q


def parse_story(text, nouns):
    """log p of every derivation of text as a story about the two nouns. One, by the proof."""
    found = []
    for n1, n2, c1, c2, p in _castings(nouns):
        kind = kind_of(c1) + kind_of(c2)
        for lp in _read([STORY[kind]], 0, text, 0, _env(n1, n2, c1, c2)):
            found.append(lp + math.log(p))
    return found


def _prompt_patterns():
    det = r"(?:(?:an?|the) )?"
    patterns = []
    for bank, nouns in ((PROMPTS_TWO, 2), (PROMPTS_ONE, 1), (PROMPTS_NONE, 0)):
        for template in bank:
            t = re.escape(template.rstrip(".!?")).replace(r"\#", "#")
            pair = det + "([a-z-]+) and " + det + "([a-z-]+)"
            t = t.replace("@", pair).replace("#", det + "([a-z-]+)")
            patterns.append((re.compile(t + "[.!?]?$", re.IGNORECASE), nouns))
    return patterns


_PATTERNS = _prompt_patterns()


def nouns_of(prompt):
    """The nouns a prompt asks for: a tuple of 0 to 2, or None if it is no request for a story."""
    prompt = " ".join(prompt.split())
    for pattern, _ in _PATTERNS:
        m = pattern.match(prompt)
        if m:
            return tuple(g.lower() for g in m.groups())
    known = [w for w in re.findall(r"[a-z-]+", prompt.lower()) if w in CATEGORY]
    return tuple(dict.fromkeys(known))[:2] or None


def logprob(prompt, reply):
    """log p(reply | prompt) in nats under the grammar, or None if the reply does not parse."""
    nouns = nouns_of(prompt)
    if nouns is None:
        return None
    n = len(NOUNS)
    if len(nouns) == 2:
        pairs, prior = [nouns], 0.0
    else:
        words = [w for w in dict.fromkeys(re.findall(r"[a-z-]+", reply)) if w in CATEGORY]
        if nouns:
            pairs = [(nouns[0], w) for w in words if w != nouns[0]]
            prior = -math.log(n - 1) if nouns[0] in CATEGORY else -math.log(n)
        else:
            pairs = list(itertools.combinations(words, 2))
            prior = -math.log(n * (n - 1) / 2)
    found = [lp + prior for pair in pairs for lp in parse_story(reply, pair)]
    if not found:
        return None
    top = max(found)
    return top + math.log(sum(math.exp(f - top) for f in found))


def _entropy(seq, categories):
    total = 0.0
    for node in seq:
        tag = node[0]
        if tag == "w":
            total += math.log(len(node[1]))
        elif tag == "k":
            total += math.log(len(node[1][categories[node[2]]]))
        elif tag == "h":
            total += math.log(len(_NAMES))
        elif tag == "c":
            total += math.log(len(node[1]))
            total += sum(_entropy(q, categories) for q in node[1]) / len(node[1])
    return total


_entropy_cache = {}


def _entropy_cast(c1, c2):
    if (c1, c2) not in _entropy_cache:
        kind = kind_of(c1) + kind_of(c2)
        _entropy_cache[c1, c2] = _entropy([STORY[kind]], {"1": c1, "2": c2})
    return _entropy_cache[c1, c2]


def entropy_of(nouns):
    """Exact entropy in nats of a story about the two given nouns."""
    return sum(p * (_entropy_cast(c1, c2) - math.log(p)) for _, _, c1, c2, p in _castings(nouns))


def entropy(prompt):
    """Exact entropy in nats of the reply to a prompt that names two nouns."""
    nouns = nouns_of(prompt)
    if nouns is None or len(nouns) != 2:
        raise ValueError("the prompt names no two things: " + prompt)
    return entropy_of(nouns)


def mean_entropy():
    """Exact entropy of the graded task: the mean of entropy() over all pairs of distinct nouns."""
    total, weight = 0.0, 0
    for c1, c2 in itertools.product(CATEGORIES, CATEGORIES):
        count = len(CATEGORIES[c1]) * (len(CATEGORIES[c2]) - (c1 == c2))
        total += count * entropy_of((CATEGORIES[c1][0], CATEGORIES[c2][1]))
        weight += count
    return total / weight


# ---------------------------------------------------------------------------------------------
# The proof that no text has two derivations.


def check_unambiguous():
    """Return a list of texts that may be ambiguous; empty proves the grammar unambiguous.

    Agreement is dropped: each reference may be any noun, name or pronoun, and a category's list is
    the union of all lists. That only adds derivations, so if the larger grammar is unambiguous this
    one is. Word lists are tries (distinct words, distinct paths), so the derivation of a text is
    its path, and the grammar is ambiguous iff two different paths spell the same text. The walk
    starts from every pair of paths that part at the same place and follows both over equal
    characters; meeting again, at the end or before, is an ambiguity.
    """
    tries = {}

    def trie(words):
        key = tuple(sorted(set(words)))
        if key not in tries:
            root = {}
            for w in key:
                node = root
                for ch in w:
                    node = node.setdefault(ch, {})
                node[""] = None
            tries[key] = root
        return tries[key]

    with_article = [article(n) + " " + n for n in NOUNS]
    unions = {"1": NOUNS, "2": NOUNS, "a1": with_article, "a2": with_article, "N": _NAMES}
    for form in FORMS["he"]:
        unions[form] = [f[form] for f in FORMS.values()]

    # A state is (trie node, rest): read on in the trie, then the rest, a linked list of node lists.
    def expand(seq, i, rest):
        """States that read a character (or END), from position i of seq and then the rest."""
        while i == len(seq):
            if rest is None:
                return [END]
            seq, i, rest = rest
        node = seq[i]
        if node[0] == "c":
            after = link(seq, i + 1, rest)
            return [s for q in node[1] for s in expand(q, 0, after)]
        if node[0] == "s":
            words = [node[1]]
        elif node[0] == "w":
            words = node[1]
            assert len(set(words)) == len(words), words
        elif node[0] == "k":
            words = [w for ws in node[1].values() for w in ws]
        else:
            words = _NAMES if node[0] == "h" else unions[node[1]]
        return leave(trie(words), link(seq, i + 1, rest))

    links = {}

    def link(seq, i, rest):
        if i == len(seq) and rest is not None:
            return rest
        return links.setdefault((id(seq), i, id(rest)), (seq, i, rest))

    def leave(node, rest):
        """A trie position, and past its end if a word ends here, as reading states."""
        states = [(node, rest)] if any(node) else []
        if "" in node:
            states += expand(*rest)
        return states

    END = ("end", None)

    def step(state):
        if state is END:
            return
        for ch, nxt in state[0].items():
            if ch:
                yield ch, leave(nxt, state[1])

    def ident(state):
        return (id(state[0]), id(state[1]))

    problems = []
    root = [STORY[kind] for kind in STORY]
    start = expand([("c", [[r] for r in root])], 0, None)
    seen, todo = set(), []

    def part(states, text):
        """Queue the states of one place and every pair of them; two equal ones are ambiguous."""
        for a, b in itertools.combinations(states, 2):
            push(a, b, text)
        for s in states:
            push(s, s, text)

    def push(a, b, text):
        key = tuple(sorted((ident(a), ident(b))))
        if key not in seen:
            seen.add(key)
            todo.append((a, b, text))

    # Two states of one place with the same identity mean that two choices read on identically.
    def same_twice(states):
        return len({ident(s) for s in states}) < len(states)

    if same_twice(start):
        problems.append("")
    part(start, "")
    while todo:
        a, b, text = todo.pop()
        if ident(a) == ident(b):
            for ch, states in step(a):
                if same_twice(states):
                    problems.append(text + ch)
                part(states, (text + ch)[-200:])
        else:
            others = dict(step(b))
            if a is END and b is END:
                problems.append(text)
            for ch, states in step(a):
                for x in states:
                    for y in others.get(ch, ()):
                        if ident(x) == ident(y):
                            problems.append((text + ch)[-200:])
                        else:
                            push(x, y, (text + ch)[-200:])
    return problems


def _main():
    rng = random.Random(1)
    for _ in range(6):
        prompt, reply = write_pair(rng)
        print("> " + prompt + "\n" + reply + "\n")
    problems = check_unambiguous()
    print("unambiguous" if not problems else "AMBIGUOUS: " + repr(problems[:5]))
    nats, words, n = 0.0, 0, 2000
    for _ in range(n):
        prompt, reply = write_pair(rng)
        assert len(parse_story(reply, nouns_of(prompt))) == 1, (prompt, reply)
        nats -= logprob(prompt, reply)
        words += len(reply.split())
    print(f"{len(NOUNS)} nouns, exact entropy {mean_entropy():.3f} nats a story, "
          f"-log p of {n} stories {nats / n:.3f}, {words / n:.1f} words")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(_main())
