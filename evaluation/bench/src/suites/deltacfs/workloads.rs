//! The work of programs in the folder: the paper's four traces (section IV-A), generated from
//! random numbers, and a file that is rewritten in place.
//!
//! The paper's two real traces were never published in a usable form. Their composition is
//! described there, and is reproduced here: a program that saves a document as Word does (Fig. 3),
//! and the real SQLite with the journal mode of a chat application. All contents are the same in
//! every run and for every contender, except for SQLite's own random numbers (the nonce of a
//! journal).

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::SuiteError;
use crate::random::{Random, random_bytes, text};
use crate::traces::operation::{Operation, Timed};
use crate::traces::{self, Pace, Replayer, Trace, Unmasked};

/// Work that is done step by step.
pub(super) struct Workload {
    pub(super) name: String,
    pub(super) about: String,
    /// The main file, relative to the folder.
    pub(super) file: PathBuf,
    pub(super) steps: usize,
    /// The number of steps between runs of peers that scan for changes, which take too long to run
    /// after each step.
    pub(super) peers_every: usize,
    /// The delay after a change before it is sent: longer than a step.
    pub(super) delay_ms: u64,
    /// The bytes that a perfect sync sends, if all new data is incompressible and new at its place.
    pub(super) changed_bytes: Option<u64>,
    /// The program changes the file in place, so that a copy is best changed in place as well.
    pub(super) is_in_place: bool,
    does: Does,
}

/// The kind of work.
enum Does {
    /// Generated work: a function that fills the empty folder, and one that starts the program in
    /// it.
    Made {
        prepare: fn(&Path) -> Result<(), SuiteError>,
        open: fn(&Path) -> Result<Box<dyn Program>, SuiteError>,
    },
    /// The recorded work of a real program, from mark to mark.
    Recorded(Trace),
}

impl Workload {
    /// Fills the empty folder.
    pub(super) fn prepare(&self, folder: &Path) -> Result<(), SuiteError> {
        match &self.does {
            Does::Made { prepare, .. } => prepare(folder),
            Does::Recorded(trace) => trace.unpack_initial(folder),
        }
    }

    /// Starts the program in the folder.
    pub(super) fn open<'a>(&'a self, folder: &'a Path) -> Result<Box<dyn Program + 'a>, SuiteError> {
        match &self.does {
            Does::Made { open, .. } => open(folder),
            Does::Recorded(trace) => {
                let mut replayer = Replayer::begin(trace, folder, false)?;
                let (unmasked, pace) = (Unmasked::begin(), Pace::Recorded { gap_max: PAUSE_MAX });
                Ok(Box::new(move |_: usize| {
                    let _ = &unmasked;
                    replayer.go_to_next_mark(pace)
                }))
            }
        }
    }
}

/// A program at work.
pub(super) trait Program {
    /// Performs the next step; `index` counts from 0.
    fn step(&mut self, index: usize) -> Result<(), SuiteError>;
}

impl<F: FnMut(usize) -> Result<(), SuiteError>> Program for F {
    fn step(&mut self, index: usize) -> Result<(), SuiteError> {
        self(index)
    }
}

const APPENDED_BYTES: usize = 800 << 10;
const APPENDS: usize = 40;
const RANDOM_FILE_BYTES: u64 = 20_000_000;
const RANDOM_WRITE_BYTES: usize = 1010;
const RANDOM_WRITES: usize = 40;
const SAVES: usize = 23;
const TRANSACTIONS: usize = 373;
const REWRITES: usize = 10;
const REWRITTEN_BYTES: usize = 8 << 20;
const WRITE_BYTES: usize = 64 << 10;

/// The limit of pauses in recorded programs, which is longer than the delay before sending.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// The recorded programs: the trace, its main file, and the delay before sending, in milliseconds.
const RECORDED: [(&str, &str, u64); 2] = [
    ("lo-writer-docx", "Documents/report.docx", 400),
    ("sqlite-chat-delete", "EnMicroMsg.db", 20),
];

/// The generated workloads, and those traces in a folder that resemble the paper's.
///
/// # Errors
/// If a trace cannot be read.
pub(super) fn all(traces: Option<&Path>) -> Result<Vec<Workload>, SuiteError> {
    let mut all = Vec::from(made());
    let Some(folder) = traces else { return Ok(all) };
    for path in traces::find(folder)? {
        let recorded_as = RECORDED.iter().find(|(name, ..)| path.ends_with(name));
        if let Some((_, file, delay_ms)) = recorded_as {
            all.push(recorded(Trace::load(&path)?, file, *delay_ms));
        }
    }
    Ok(all)
}

fn recorded(trace: Trace, file: &str, delay_ms: u64) -> Workload {
    let is_mark = |timed: &&Timed| matches!(timed.operation, Operation::Mark);
    let steps = trace.operations.iter().filter(is_mark).count();
    Workload {
        name: trace.name.clone(),
        about: format!(
            "{}; recorded, with pauses of at most {} ms",
            trace.about,
            PAUSE_MAX.as_millis()
        ),
        file: file.into(),
        steps,
        peers_every: 1,
        delay_ms,
        changed_bytes: None,
        is_in_place: false,
        does: Does::Recorded(trace),
    }
}

fn made() -> [Workload; 5] {
    [
    Workload {
        name: "append write".to_owned(),
        about: "40 times 800 KiB of random bytes behind the end of a file that begins empty".to_owned(),
        file: "appended".into(),
        steps: APPENDS,
        peers_every: 1,
        delay_ms: 100,
        changed_bytes: Some((APPENDS * APPENDED_BYTES) as u64),
        is_in_place: true,
        does: Does::Made {
        prepare: |folder| Ok(fs::write(folder.join("appended"), [])?),
        open: |folder| {
            let path = folder.join("appended");
            Ok(Box::new(move |index: usize| {
                let mut file = OpenOptions::new().append(true).open(&path)?;
                Ok(file.write_all(&random_bytes(100 + index as u64, APPENDED_BYTES))?)
            }))
        },
    }},
    Workload {
        name: "random write".to_owned(),
        about: "40 times 1010 random bytes anywhere in a file of 20 MB".to_owned(),
        file: "overwritten".into(),
        steps: RANDOM_WRITES,
        peers_every: 1,
        delay_ms: 100,
        changed_bytes: Some((RANDOM_WRITES * RANDOM_WRITE_BYTES) as u64),
        is_in_place: true,
        does: Does::Made {
        prepare: |folder| {
            let bytes = random_bytes(1, usize::try_from(RANDOM_FILE_BYTES)?);
            Ok(fs::write(folder.join("overwritten"), bytes)?)
        },
        open: |folder| {
            let path = folder.join("overwritten");
            let mut random = Random::new(2);
            Ok(Box::new(move |index: usize| {
                let at = random.below(RANDOM_FILE_BYTES - RANDOM_WRITE_BYTES as u64);
                let file = OpenOptions::new().write(true).open(&path)?;
                Ok(file.write_all_at(&random_bytes(200 + index as u64, RANDOM_WRITE_BYTES), at)?)
            }))
        },
    }},
    Workload {
        name: "document".to_owned(),
        about: "23 saves of a document of 11 MB, each by a new file that takes the old one's name (Fig. 3): 10.5 MB of it are pictures, 0.5 MB \
                compressed text, which is edited anywhere and then differs from there on; all behind it moves".to_owned(),
        file: "document.docx".into(),
        steps: SAVES,
        peers_every: 1,
        delay_ms: 400,
        changed_bytes: None,
        is_in_place: false,
        does: Does::Made {
        prepare: |folder| Ok(fs::write(folder.join("document.docx"), Document::new().bytes()?)?),
        open: |folder| {
            let (folder, mut document) = (folder.to_owned(), Document::new());
            Ok(Box::new(move |_: usize| {
                document.edit();
                save_as_word_does(&folder, &document.bytes()?)
            }))
        },
    }},
    Workload {
        name: "database".to_owned(),
        about: "373 transactions on a SQLite database of 131 MB with chats (journal mode truncate, synchronous full): one to four new messages each, \
                an overview of the chat, and what was read".to_owned(),
        file: "chats.db".into(),
        steps: TRANSACTIONS,
        peers_every: 25,
        delay_ms: 20,
        changed_bytes: None,
        is_in_place: true,
        does: Does::Made {
        prepare: |folder| make_chats(&folder.join("chats.db")),
        open: |folder| {
            let mut chats = Chats::open(&folder.join("chats.db"))?;
            Ok(Box::new(move |index: usize| {
                Ok(chats.transaction(i64::try_from(index)?)?)
            }))
        },
    }},
    Workload {
        name: "rewrite in place".to_owned(),
        about: "10 times a file of 8 MiB is written over in place, from its beginning to its end, with 100 bytes more near its middle (section III-A, end)".to_owned(),
        file: "rewritten".into(),
        steps: REWRITES,
        peers_every: 1,
        delay_ms: 400,
        changed_bytes: None,
        is_in_place: true,
        does: Does::Made {
        prepare: |folder| Ok(fs::write(folder.join("rewritten"), random_bytes(3, REWRITTEN_BYTES))?),
        open: |folder| {
            let path = folder.join("rewritten");
            let mut content = random_bytes(3, REWRITTEN_BYTES);
            Ok(Box::new(move |index: usize| {
                let at = content.len() / 3 + index * 12_345;
                content.splice(at..at, random_bytes(300 + index as u64, 100));
                let mut file = OpenOptions::new().write(true).open(&path)?;
                for piece in content.chunks(WRITE_BYTES) {
                    file.write_all(piece)?;
                }
                Ok(())
            }))
        },
    }},
]
}

/// A document in the format of office programs: a container of compressed text and pictures, with a
/// directory at its end.
struct Document {
    text: String,
    random: Random,
    pictures: [Vec<u8>; 2],
}

impl Document {
    fn new() -> Self {
        let mut random = Random::new(4);
        Self {
            text: text(&mut random, 1_500_000),
            random,
            pictures: [random_bytes(5, 4_000_000), random_bytes(6, 6_500_000)],
        }
    }

    /// Inserts a sentence somewhere, as if it were typed.
    fn edit(&mut self) {
        let at = self.random.below(self.text.len() as u64) as usize;
        let sentence = text(&mut self.random, 120);
        self.text.insert_str(at, &sentence);
    }

    fn bytes(&self) -> Result<Vec<u8>, SuiteError> {
        let mut bytes = b"container\0".to_vec();
        let mut places = Vec::new();
        let text = zstd::encode_all(self.text.as_bytes(), 3)?;
        for part in [self.pictures[0].as_slice(), &text, &self.pictures[1]] {
            places.push(bytes.len());
            bytes.extend_from_slice(part);
        }
        for place in places {
            bytes.extend_from_slice(&(place as u64).to_le_bytes());
        }
        Ok(bytes)
    }
}

/// Fig. 3: the old file is renamed, the new one is written under another name and then renamed to
/// the old one's; then the old one is removed.
fn save_as_word_does(folder: &Path, content: &[u8]) -> Result<(), SuiteError> {
    let [name, aside, new] = ["document.docx", "~WRL0001.tmp", "~WRD0000.tmp"].map(|name| folder.join(name));
    let mut file = File::create(&new)?;
    for piece in content.chunks(WRITE_BYTES) {
        file.write_all(piece)?;
    }
    drop(file);
    fs::rename(&name, &aside)?;
    fs::rename(&new, &name)?;
    Ok(fs::remove_file(&aside)?)
}

const CHATS: i64 = 400;
const CHATS_BYTES: i64 = 131_000_000;

/// A random chat.
fn any_chat(random: &mut Random) -> i64 {
    // Below the number of chats.
    random.below(CHATS as u64) as i64
}

/// Creates a database of chats.
fn make_chats(path: &Path) -> Result<(), SuiteError> {
    let mut database = rusqlite::Connection::open(path)?;
    database.pragma_update(None, "journal_mode", "off")?;
    database.pragma_update(None, "synchronous", "off")?;
    database.execute_batch(
        "create table messages(id integer primary key, chat integer, at integer, sender text, is_read integer, body text); \
         create index messages_by_chat on messages(chat, at); \
         create table chats(chat integer primary key, title text, unread integer, last text, changed integer);",
    )?;
    let mut random = Random::new(7);
    let all = database.transaction()?;
    {
        let mut chat = all.prepare("insert into chats values (?1, ?2, 0, '', 0)")?;
        for number in 0..CHATS {
            chat.execute((number, text(&mut random, 20)))?;
        }
        let mut message = all.prepare("insert into messages values (null, ?1, ?2, ?3, 1, ?4)")?;
        let mut at = 0_i64;
        loop {
            at += 1;
            let len = 20 + random.below(500) as usize;
            message.execute((any_chat(&mut random), at, text(&mut random, 8), text(&mut random, len)))?;
            if at % 10_000 == 0 {
                let pages: i64 = all.query_row("pragma page_count", [], |row| row.get(0))?;
                if pages * 4096 >= CHATS_BYTES {
                    break;
                }
            }
        }
    }
    all.commit()?;
    Ok(())
}

struct Chats {
    database: rusqlite::Connection,
    random: Random,
}

impl Chats {
    fn open(path: &Path) -> Result<Self, SuiteError> {
        let database = rusqlite::Connection::open(path)?;
        database.pragma_update(None, "journal_mode", "truncate")?;
        database.pragma_update(None, "synchronous", "full")?;
        Ok(Self {
            database,
            random: Random::new(8),
        })
    }

    fn transaction(&mut self, index: i64) -> rusqlite::Result<()> {
        let all = self.database.transaction()?;
        let chat = any_chat(&mut self.random);
        for _ in 0..=self.random.below(4) {
            let len = 20 + self.random.below(300) as usize;
            let (sender, body) = (text(&mut self.random, 8), text(&mut self.random, len));
            let at = 10_000_000 + index;
            all.execute(
                "insert into messages values (null, ?1, ?2, ?3, 0, ?4)",
                (chat, at, sender, &body),
            )?;
            all.execute(
                "update chats set unread = unread + 1, last = ?2, changed = ?3 where chat = ?1",
                (chat, body, at),
            )?;
        }
        if index % 5 == 0 {
            all.execute(
                "update messages set is_read = 1 where chat = ?1 and is_read = 0",
                [chat],
            )?;
            all.execute("update chats set unread = 0 where chat = ?1", [chat])?;
        }
        all.commit()
    }
}

/// Checks that the names and contents of all files in two folders are the same, apart from
/// Syncthing's own (`.st...`).
pub(super) fn compare_contents(expected: &Path, actual: &Path) -> Result<(), SuiteError> {
    let (mut names, mut others) = (Vec::new(), Vec::new());
    files(expected, Path::new(""), &mut names)?;
    files(actual, Path::new(""), &mut others)?;
    if names != others {
        return Err(format!("{} holds {others:?} instead of {names:?}", actual.display()).into());
    }
    for name in names {
        if fs::read(expected.join(&name))? != fs::read(actual.join(&name))? {
            return Err(format!("{} differs from what was written", actual.join(name).display()).into());
        }
    }
    Ok(())
}

/// All files below a directory of a folder, sorted by path.
fn files(folder: &Path, directory: &Path, found: &mut Vec<PathBuf>) -> Result<(), SuiteError> {
    let mut entries = fs::read_dir(folder.join(directory))?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        if directory.as_os_str().is_empty() && name.as_encoded_bytes().starts_with(b".st") {
            continue;
        }
        let path = directory.join(name);
        match entry.file_type()?.is_dir() {
            true => files(folder, &path, found)?,
            false => found.push(path),
        }
    }
    Ok(())
}
