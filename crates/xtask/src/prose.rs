//! The rules of `docs/style.md` that can be counted, held for each crate by a ratchet.
//!
//! Text from before the rules breaks them in thousands of places. So each crate has a ceiling for
//! each rule, in `crates/xtask/prose.txt`: no change may exceed it, and a change that gets below it
//! lowers it, with `cargo xtask prose --lower`.
//!
//! Only comments and names of tests are checked. No tool can tell whether a text is good.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The file of the ceilings.
pub(crate) const CEILINGS: &str = "crates/xtask/prose.txt";

/// The most columns of a comment line, including its indentation.
const COMMENT_COLUMNS_MAX: usize = 100;

/// The most characters in the name of a test.
const TEST_NAME_LEN_MAX: usize = 60;

/// Words with which no sentence may begin: its subject must be a noun.
const RELATIVES: &[&str] = &["What", "Who", "Whoever", "Whatever"];

/// Phrases for which there is better English.
const STIFF: &[&str] = &["so many", "of which it is", "somebody", "youngest", "elder"];

/// Words that need a noun before them, and so must not begin a one-line comment.
const PRONOUNS: &[&str] = &["It", "They", "That", "These", "Those", "One", "Which"];

/// A rule whose violations are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// A sentence begins with one of [`RELATIVES`].
    Relative,
    /// A line contains one of the phrases of [`STIFF`].
    Stiff,
    /// The documentation of an item is one line and begins with one of [`PRONOUNS`].
    Pronoun,
    /// A comment line that could be broken has more than [`COMMENT_COLUMNS_MAX`] columns.
    Wide,
    /// The name of a test has more than [`TEST_NAME_LEN_MAX`] characters.
    LongTestName,
}

const RULES: [Rule; 5] = [
    Rule::Relative,
    Rule::Stiff,
    Rule::Pronoun,
    Rule::Wide,
    Rule::LongTestName,
];

impl Rule {
    fn name(self) -> &'static str {
        match self {
            Self::Relative => "relative",
            Self::Stiff => "stiff",
            Self::Pronoun => "pronoun",
            Self::Wide => "wide",
            Self::LongTestName => "long-test-name",
        }
    }

    pub(crate) fn advice(self) -> &'static str {
        match self {
            Self::Relative => "begin the sentence with its noun",
            Self::Stiff => "use other words for 'so many', 'of which it is', 'somebody', 'youngest' or 'elder'",
            Self::Pronoun => "name the thing that the pronoun stands for",
            Self::Wide => "break comment lines before column 101",
            Self::LongTestName => "give the test a name of at most 60 characters",
        }
    }
}

/// How often each rule is broken, by crate.
pub(crate) type Counts = BTreeMap<(String, Rule), u64>;

/// The places where rules are broken, by crate and rule.
pub(crate) type Places = BTreeMap<(String, Rule), Vec<String>>;

/// Looks through the sources of all crates.
pub(crate) fn find(files: &BTreeMap<String, Vec<u8>>) -> Places {
    let mut places = Places::new();
    for (path, bytes) in files {
        let below = path
            .strip_prefix("crates/")
            .or_else(|| path.strip_prefix("evaluation/"));
        let inside = below.and_then(|rest| rest.split_once('/'));
        let (Some((name, _)), true) = (inside, path.ends_with(".rs")) else {
            continue;
        };
        let text = String::from_utf8_lossy(bytes);
        let lines: Vec<&str> = text.lines().collect();
        for at in 0..lines.len() {
            for rule in RULES {
                let broken = times_broken(rule, &lines, at);
                let place = format!("{path}:{}", at + 1);
                let found = std::iter::repeat_n(place, broken);
                places.entry((name.to_owned(), rule)).or_default().extend(found);
            }
        }
    }
    places.retain(|_, found| !found.is_empty());
    places
}

/// How often a line breaks a rule.
fn times_broken(rule: Rule, lines: &[&str], at: usize) -> usize {
    let line = lines[at];
    let Some(text) = comment(line) else {
        let is_long = rule == Rule::LongTestName && is_long_test(lines, at);
        return usize::from(is_long);
    };
    match rule {
        Rule::Relative => sentences(text)
            .filter(|sentence| starts_with_any(sentence, RELATIVES))
            .count(),
        Rule::Stiff => STIFF.iter().map(|phrase| text.matches(phrase).count()).sum(),
        Rule::Pronoun => {
            let is_doc = |line: &&str| line.trim_start().starts_with("///");
            let is_alone = !lines[..at].last().is_some_and(is_doc) && !lines.get(at + 1).is_some_and(is_doc);
            usize::from(is_doc(&line) && is_alone && starts_with_any(text, PRONOUNS))
        }
        // Rows of a table and samples cannot be broken.
        Rule::Wide => usize::from(line.chars().count() > COMMENT_COLUMNS_MAX && !is_verbatim(line, text)),
        Rule::LongTestName => 0,
    }
}

/// The text of a line that is a comment and nothing else.
fn comment(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("//")?;
    Some(rest.trim_start_matches(['/', '!']).trim())
}

/// Whether a comment line is a row of a table, or a sample, indented by four spaces or more.
fn is_verbatim(line: &str, text: &str) -> bool {
    let behind_slashes = line.trim_start().trim_start_matches(['/', '!']);
    text.starts_with('|') || behind_slashes.starts_with("     ")
}

/// The sentences that begin on a line of a comment; the first may have begun above.
fn sentences(text: &str) -> impl Iterator<Item = &str> {
    text.split(". ")
        .map(|sentence| sentence.trim_start_matches(['-', '*', ' ']))
}

fn starts_with_any(text: &str, words: &[&str]) -> bool {
    let first = text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    words.contains(&first)
}

/// Whether a line declares a test with too long a name.
fn is_long_test(lines: &[&str], at: usize) -> bool {
    let name = lines[at]
        .trim_start()
        .strip_prefix("fn ")
        .and_then(|rest| rest.split('(').next());
    let is_test = || {
        let above = lines[..at].iter().rev().take(4);
        above
            .take_while(|line| !line.trim().is_empty())
            .any(|line| line.trim() == "#[test]")
    };
    name.is_some_and(|name| name.len() > TEST_NAME_LEN_MAX) && is_test()
}

/// The number of places for each crate and rule.
pub(crate) fn counts(places: &Places) -> Counts {
    let count = |(key, found): (&(String, Rule), &Vec<String>)| (key.clone(), found.len() as u64);
    places.iter().map(count).collect()
}

/// Parses the file of ceilings: a line for each crate and rule, `CRATE RULE COUNT`; a missing line
/// means 0.
pub(crate) fn parse(text: &str) -> Result<Counts, String> {
    let mut ceilings = Counts::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let rule = |name: &str| RULES.into_iter().find(|rule| rule.name() == name);
        let read = (|| {
            let name = words.next()?.to_owned();
            let rule = rule(words.next()?)?;
            Some(((name, rule), words.next()?.parse().ok()?))
        })();
        let (key, count) = read.ok_or_else(|| format!("{CEILINGS}:{number}: expected CRATE RULE COUNT"))?;
        ceilings.insert(key, count);
    }
    Ok(ceilings)
}

/// The text of the file of ceilings.
pub(crate) fn print(counts: &Counts) -> String {
    let mut text =
        "# Ceilings of the rules in docs/style.md, by crate. They only go down: cargo xtask prose --lower\n".to_owned();
    for ((name, rule), count) in counts {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name} {} {count}", rule.name());
    }
    text
}

/// A line for each crate and rule whose count is not its ceiling.
pub(crate) fn compare(places: &Places, ceilings: &Counts) -> Vec<String> {
    let counts = counts(places);
    let mut keys: Vec<&(String, Rule)> = counts.keys().chain(ceilings.keys()).collect();
    keys.sort();
    keys.dedup();
    let mut problems = Vec::new();
    for key in keys {
        let of = |counts: &Counts| counts.get(key).copied().unwrap_or(0);
        let (count, ceiling) = (of(&counts), of(ceilings));
        let (name, rule) = (&key.0, key.1);
        if count > ceiling {
            problems.push(format!(
                "{name}: {count} times '{}', but the ceiling is {ceiling}; {} (cargo xtask prose {name} shows where)",
                rule.name(),
                rule.advice()
            ));
        } else if count < ceiling {
            problems.push(format!(
                "{name}: only {count} times '{}', but the ceiling is {ceiling}; lower it: cargo xtask prose --lower",
                rule.name()
            ));
        }
    }
    problems
}

#[cfg(test)]
mod tests;
