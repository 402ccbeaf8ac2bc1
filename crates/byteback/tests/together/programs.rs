//! People's work in their folders, as scripts of real programs; and the invariants of the programs'
//! files, wherever and whenever they are checked: on another machine, at the server, in the middle
//! of everything.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;

use byteback_host::random::{SplitMix64, noise};
use byteback_testkit::seed::Draw;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::machines::LONG;

/// A script that runs in a directory of its machine's own. `$N` is a random number, `$STOCK` a
/// directory outside the folder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// The required program, without which the script is left out; empty if all systems have it.
    needs: &'static str,
    script: &'static str,
}

/// Two tables that are equal after each transaction, and the number of transactions.
const SQLITE_ROLLBACK: &str = r#"
case $((N % 3)) in 0) mode=DELETE;; 1) mode=TRUNCATE;; 2) mode=PERSIST;; esac
for i in 1 2 3 4; do
sqlite3 -bail rollback.db > /dev/null <<END
.timeout 20000
PRAGMA journal_mode=$mode;
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS a(id INTEGER PRIMARY KEY, x TEXT);
CREATE TABLE IF NOT EXISTS b(id INTEGER PRIMARY KEY, x TEXT);
WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT i + 1 FROM n WHERE i < 40) INSERT INTO a(x) SELECT 'row ' || hex(randomblob(20 + i)) FROM n;
UPDATE a SET x = x || '$N' WHERE id % 17 = $i;
DELETE FROM a WHERE id % 23 = $i;
DELETE FROM b;
INSERT INTO b SELECT * FROM a;
COMMIT;
END
done
"#;

const SQLITE_WAL: &str = r#"
sqlite3 -bail wal.db > /dev/null <<END
.timeout 20000
PRAGMA journal_mode=WAL;
PRAGMA wal_autocheckpoint=$((N % 40 + 5));
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS a(id INTEGER PRIMARY KEY, x TEXT);
CREATE TABLE IF NOT EXISTS b(id INTEGER PRIMARY KEY, x TEXT);
COMMIT;
BEGIN IMMEDIATE;
WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT i + 1 FROM n WHERE i < 50) INSERT INTO a(x) SELECT 'row ' || hex(randomblob(30 + i)) FROM n;
DELETE FROM b;
INSERT INTO b SELECT * FROM a;
COMMIT;
BEGIN IMMEDIATE;
UPDATE a SET x = 'again $N' WHERE id % 7 = $((N % 7));
UPDATE b SET x = 'again $N' WHERE id % 7 = $((N % 7));
COMMIT;
BEGIN IMMEDIATE;
DELETE FROM a WHERE id % 11 = $((N % 11));
DELETE FROM b WHERE id % 11 = $((N % 11));
COMMIT;
END
"#;

/// An earlier process may have been killed: its locks are removed, as people do.
const GIT: &str = r#"
if [ ! -e repo/.git ] || ! git -C repo rev-parse -q --verify HEAD > /dev/null 2>&1; then
  rm -rf repo
  git init -q -b main repo
  (cd repo; echo begun > begun; git add begun; git commit -q -m begun)
fi
rm -rf clone
cd repo
find .git -name '*.lock' -delete
git reset -q --hard
for i in 1 2 3; do
  mkdir -p dir$((N % 5))
  echo "$N $i" >> dir$((N % 5))/file$((N % 3 + i))
  seq $((N % 1000)) $((N % 1000 + 300)) > numbers$i
  git add -A
  git commit -q -m "change $N $i"
done
case $((N % 4)) in
  0) git gc -q ;;
  1) git checkout -q -B side; echo "$N" > aside; git add -A; git commit -q -m aside; git checkout -q main; git merge -q --no-edit side ;;
  2) git clone -q . ../clone; git -C ../clone fsck --full > /dev/null; (cd ../clone; echo x > y; git add -A; git commit -q -m clone) ;;
  3) git repack -q -a -d; git tag -f "t$((N % 6))" > /dev/null ;;
esac
"#;

const VIM: &str = r#"
[ -e letter.txt ] || seq 1 200 > letter.txt
rm -f .*.swp
case $((N % 3)) in 0) how=yes;; 1) how=no;; 2) how=auto;; esac
vim -u NONE -N -es -c "set directory=. backupdir=. writebackup backupcopy=$how" -c "$((N % 150 + 1))s/^/$N: /e" -c "normal Go$N" -c "wq" letter.txt < /dev/null
vim -u NONE -N -es -c "set directory=. backupdir=. backup backupcopy=$how" -c "1s/^/top $N /e" -c "w" -c "normal Golast" -c "wq" letter.txt < /dev/null
grep -q "$N" letter.txt
"#;

const SED: &str = r#"
[ -e list ] || seq 1 3000 > list
sed -i -e "$((N % 3000 + 1))s/.*/changed $N/" list
sed -i~ -e "$((N % 2000 + 1))s/.*/kept $N/" list
[ $((N % 3)) -ne 0 ] || { cp list list.new; mv list list.old; mv list.new list; }
"#;

const TAR: &str = r#"
rm -rf unpacked.$((N % 2))
mkdir unpacked.$((N % 2))
tar -xf "$STOCK/stock.tar" -C unpacked.$((N % 2))
"#;

const RSYNC: &str = r#"
[ $((N % 2)) -eq 0 ] || how=--inplace
rsync -a --delete $how "$STOCK/files/" mirror/
"#;

/// Names, links, attributes, kinds that change.
const SHELL: &str = r#"
mkdir -p d/e/f "d/a name with spaces"
echo "$N" > d/e/f/file$((N % 7))
ln -f d/e/f/file$((N % 7)) d/hard$((N % 3))
ln -sfn "e/f/file$((N % 7))" d/soft
echo more >> d/hard$((N % 3))
chmod $((N % 2 * 2 + 4))00 d/hard$((N % 3))
touch -d "2001-02-03 04:05:06.$((N % 1000000000))" d/e/f/file$((N % 7))
mv -T d/e "d/g$((N % 2))" 2> /dev/null || { rm -rf "d/g$((N % 2))"; mv d/e "d/g$((N % 2))"; }
truncate -s $((N % 100000)) d/sparse
printf '%s' "$N" | dd of=d/sparse bs=1 seek=$((N % 90000)) conv=notrunc status=none
if [ -d swap ]; then rm -rf swap; echo "a file $N" > swap; else rm -f swap; mkdir swap; echo "$N" > swap/inside; fi
rm -rf "d/a name with spaces"
[ -p d/pipe ] || mkfifo d/pipe
"#;

const ATTRIBUTES: &str = r#"
echo "$N" > attributed
setfattr -n user.origin -v "$N" attributed
[ $((N % 2)) -eq 0 ] || setfattr -x user.origin attributed
mkdir -p kept; setfattr -n user.note -v "note $N" kept
"#;

/// All scripts.
pub(crate) const PROGRAMS: [Program; 9] = [
    program("sqlite with a rollback journal", "sqlite3", SQLITE_ROLLBACK),
    program("sqlite with a write-ahead log", "sqlite3", SQLITE_WAL),
    program("git", "git", GIT),
    program("vim", "vim", VIM),
    program("sed -i", "sed", SED),
    program("tar", "tar", TAR),
    program("rsync", "rsync", RSYNC),
    program("the shell", "sh", SHELL),
    program("setfattr", "setfattr", ATTRIBUTES),
];

const fn program(name: &'static str, needs: &'static str, script: &'static str) -> Program {
    Program { name, needs, script }
}

/// The scripts whose programs are installed here.
pub(crate) fn installed() -> Vec<Program> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |name: &str| std::env::split_paths(&path).any(|dir| dir.join(name).exists());
    let (there, missing): (Vec<_>, Vec<_>) = PROGRAMS.into_iter().partition(|program| is_there(program.needs));
    for program in missing {
        println!("left out, as {} is not installed: {}", program.needs, program.name);
    }
    there
}

/// Fills a directory outside the folder with files to be unpacked and mirrored into it, changed a
/// little each time.
pub(crate) fn restock(stock: &Path, random: &mut SplitMix64) {
    let files = stock.join("files");
    fs::create_dir_all(files.join("sub")).unwrap();
    for _ in 0..3 {
        let name = format!("{}{}", ["", "sub/"][random.index(2)], random.below(12));
        let len = [0, 100, 5000, 60_000, 300_000][random.index(5)];
        fs::write(files.join(name), noise(random.next_u64(), len)).unwrap();
    }
    let _ = fs::remove_file(files.join(random.below(12).to_string()));
    shell(stock, "tar -cf stock.tar files", 0, stock).unwrap();
}

impl Program {
    /// Runs the script to its end; the error is its output.
    pub(crate) fn run(&self, dir: &Path, number: u64, stock: &Path) -> Result<(), String> {
        shell(dir, self.script, number, stock).map(drop)
    }
}

/// Runs a shell script, which stops at the first failure.
pub(crate) fn shell(dir: &Path, script: &str, number: u64, stock: &Path) -> Result<String, String> {
    let mut command = Command::new("bash");
    command
        .args([
            "-e",
            "-u",
            "-o",
            "pipefail",
            "-c",
            &format!("how=''; N={number}\n{script}"),
        ])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", stock)
        .env("STOCK", stock)
        .env("TZ", "UTC")
        .env("LC_ALL", "C.UTF-8")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "Somebody");
        command.env(format!("GIT_{who}_EMAIL"), "somebody@example.org");
    }
    // A process group of its own: all processes of the script can be told from others, and ended.
    let child = command
        .process_group(0)
        .spawn()
        .map_err(|error| format!("in {}: {error}", dir.display()))?;
    let group = Pid::from_child(&child);
    let (answer, answered) = mpsc::channel();
    std::thread::spawn(move || answer.send(child.wait_with_output()));
    let Ok(output) = answered.recv_timeout(LONG) else {
        let members = members(group);
        let _ = kill_process_group(group, Signal::KILL);
        panic!(
            "a script in {} has not ended after {LONG:?}:\n{script}\nIts processes:\n{members}",
            dir.display()
        );
    };
    let Output { status, stdout, stderr } = output.unwrap();
    let said = String::from_utf8_lossy(&stdout).into_owned();
    match status.success() {
        true => Ok(said),
        false => Err(format!(
            "N={number}: {status}: {said}{}",
            String::from_utf8_lossy(&stderr)
        )),
    }
}

/// The processes of a group, and where in the kernel each of them waits, for the message about a
/// script that did not end.
fn members(group: Pid) -> String {
    let mut text = String::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        // A process that ends meanwhile is left out.
        let tell = |what: &str| fs::read_to_string(entry.path().join(what)).unwrap_or_default();
        // The name is in brackets and may hold any byte; state, parent and group follow.
        let stat = tell("stat");
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        if fields.clone().nth(2) != Some(&group.as_raw_nonzero().to_string()) {
            continue;
        }
        let state = fields.clone().next().unwrap_or_default();
        let (pid, command) = (entry.file_name(), tell("cmdline").replace('\0', " "));
        text.push_str(&format!("{} {state} {command}\n{}", pid.display(), tell("stack")));
    }
    text
}

/// Checks the invariants of a machine's part of a folder, which must hold in every state that it
/// ever had, on a copy that nothing else uses.
pub(crate) fn check(part: &Path) -> Result<(), String> {
    for name in ["rollback.db", "wal.db"] {
        let database = part.join(name);
        if !database.exists() {
            continue;
        }
        let script = format!(
            "sqlite3 -bail {name} 'PRAGMA integrity_check;
             SELECT CASE WHEN (SELECT count(*) FROM sqlite_master) = 0 THEN 0 ELSE 1 END;'"
        );
        let said = shell(part, &script, 0, part).map_err(|error| format!("{}: {error}", database.display()))?;
        let Some(has_tables) = said.strip_prefix("ok\n") else {
            return Err(format!("{}: {said}", database.display()));
        };
        if has_tables.trim() == "0" {
            continue;
        }
        let differ = "SELECT count(*) FROM (SELECT * FROM a EXCEPT SELECT * FROM b) UNION ALL SELECT count(*) FROM (SELECT * FROM b EXCEPT SELECT * FROM a);";
        let said = shell(part, &format!("sqlite3 -bail {name} '{differ}'"), 0, part)
            .map_err(|error| format!("{}: {error}", database.display()))?;
        if said != "0\n0\n" {
            return Err(format!("{}: half of a transaction: {said}", database.display()));
        }
    }
    let repository = part.join("repo");
    let is_begun = repository.join(".git/refs/heads/main").exists() || repository.join(".git/packed-refs").exists();
    if is_begun {
        let fsck = "GIT_CEILING_DIRECTORIES=\"$PWD\" git -C repo fsck --full --no-dangling && git -C repo log -p --all > /dev/null";
        shell(part, fsck, 0, part).map_err(|error| format!("{}: {error}", repository.display()))?;
    }
    Ok(())
}

/// Makes a copy of a directory, which may be changed.
pub(crate) fn copy(from: &Path, to: &Path) -> PathBuf {
    let _ = fs::remove_dir_all(to);
    let done = Command::new("cp").arg("-a").arg(from).arg(to).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    to.to_owned()
}
