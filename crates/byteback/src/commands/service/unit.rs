//! The text of a unit file, and names in systemd's form.
//!
//! A word of a command line, a path and an assignment are quoted by the rules of
//! `systemd.syntax(7)` and `systemd.service(5)`: percent signs are specifiers, dollar signs name
//! variables in command lines, and words with other special characters are put in double quotes,
//! byte by byte if necessary. Names follow `systemd-escape --path`.

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// First line of each of our files. A file without it is not ours.
pub(super) const MARK: &str = "# Written by 'byteback service install'; 'byteback service remove' takes it away.";

/// Prefix of a line that names a directory that was made for the unit and is removed with it.
pub(super) const MADE: &str = "# Made for it: ";

/// Longest name that systemd accepts, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// The task of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Serve,
    Mount,
    Sync,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Serve, Self::Mount, Self::Sync];

    pub(super) fn verb(self) -> &'static str {
        match self {
            Self::Serve => "serve",
            Self::Mount => "mount",
            Self::Sync => "sync",
        }
    }

    /// The name of the unit of this kind for a folder, or for a server's data folder; `None` if the
    /// name would be too long.
    pub(super) fn unit_name(self, path: &Path) -> Option<String> {
        let name = format!("byteback-{}-{}.service", self.verb(), escape_path(path));
        (name.len() <= NAME_BYTES_MAX).then_some(name)
    }
}

/// The content of a unit.
#[derive(Debug)]
pub(super) struct Unit<'a> {
    pub(super) kind: Kind,
    /// The folder, or the server's data folder.
    pub(super) path: &'a Path,
    pub(super) program: &'a Path,
    /// Arguments of the program.
    pub(super) arguments: &'a [OsString],
    pub(super) environment: &'a [(&'static str, OsString)],
    /// Places that must be mounted before the start.
    pub(super) needs: &'a [PathBuf],
    /// Whether this is a unit of a user, not of the system.
    pub(super) is_of_user: bool,
}

impl Unit<'_> {
    /// The content of the file, without the lines of [`MADE`].
    pub(super) fn text(&self) -> String {
        let path = specifiers(&self.path.to_string_lossy().replace(char::is_control, "?"));
        let description = match self.kind {
            Kind::Serve => format!("Byteback server with its data in {path}"),
            Kind::Mount => format!("Byteback tracks {path}"),
            Kind::Sync => format!("Byteback keeps {path} in sync"),
        };
        let mut text = format!(
            "{MARK}\n[Unit]\nDescription={description}\nDocumentation=man:byteback-{}(1)\n",
            self.kind.verb()
        );
        if self.kind != Kind::Mount && !self.is_of_user {
            text.push_str("Wants=network-online.target\nAfter=network-online.target\n");
        }
        for place in self.needs {
            let _ = writeln!(text, "RequiresMountsFor={}", quoted(place.as_os_str(), false));
        }
        // A disk or a server that is away for a while is no reason to give up.
        text.push_str("StartLimitIntervalSec=0\n\n[Service]\nType=notify\n");
        for (name, value) in self.environment {
            let mut assignment = OsString::from(name);
            assignment.push("=");
            assignment.push(value);
            let _ = writeln!(text, "Environment={}", quoted(&assignment, false));
        }
        // systemd expands no variables in the path of the program.
        let _ = write!(text, "ExecStart={}", quoted(self.program.as_os_str(), false));
        for argument in self.arguments {
            let _ = write!(text, " {}", quoted(argument, true));
        }
        // Wrong usage, a missing folder, a missing token: a restart does not help.
        text.push_str("\nRestart=on-failure\nRestartSec=5\nRestartPreventExitStatus=2 10 12\n");
        // A large folder is first compared with its record. At the end, programs may still have
        // files open.
        text.push_str("TimeoutStartSec=infinity\nTimeoutStopSec=120\n");
        if self.kind == Kind::Serve && !self.is_of_user {
            text.push_str(
                "NoNewPrivileges=yes\nMemoryDenyWriteExecute=yes\nPrivateTmp=yes\nPrivateDevices=yes\nProtectSystem=full\n\
                 ProtectKernelModules=yes\nProtectKernelTunables=yes\nProtectControlGroups=yes\n\
                 RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX\n",
            );
        }
        let target = wanted_by(self.is_of_user);
        let _ = write!(text, "\n[Install]\nWantedBy={target}\n");
        text
    }
}

/// The target that starts the units: the boot, or the login of the user.
pub(super) fn wanted_by(is_of_user: bool) -> &'static str {
    match is_of_user {
        true => "default.target",
        false => "multi-user.target",
    }
}

fn specifiers(text: &str) -> String {
    text.replace('%', "%%")
}

/// A word of a unit file, quoted. In command lines, dollar signs are doubled.
pub(super) fn quoted(word: &OsStr, is_of_command: bool) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/_.:=,+-@".contains(byte);
    let bytes = word.as_bytes();
    if !bytes.is_empty() && bytes.iter().all(is_plain) {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    let mut text = String::from("\"");
    for byte in bytes {
        match byte {
            b'%' => text.push_str("%%"),
            b'$' if is_of_command => text.push_str("$$"),
            b'"' => text.push_str("\\\""),
            b'\\' => text.push_str("\\\\"),
            0x20..0x7f => text.push(char::from(*byte)),
            other => {
                let _ = write!(text, "\\x{other:02x}");
            }
        }
    }
    text.push('"');
    text
}

/// The path in the form of `systemd-escape --path`; it must be absolute.
pub(super) fn escape_path(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let parts: Vec<&[u8]> = bytes
        .split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .collect();
    if parts.is_empty() {
        return "-".to_owned();
    }
    let mut text = String::new();
    for (at, byte) in parts.join(&b'/').into_iter().enumerate() {
        match byte {
            b'/' => text.push('-'),
            b'.' if at == 0 => text.push_str("\\x2e"),
            b':' | b'_' | b'.' => text.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => text.push(char::from(byte)),
            other => {
                let _ = write!(text, "\\x{other:02x}");
            }
        }
    }
    text
}

/// The task and the path that one of our unit names stands for; `None` for any other name.
pub(super) fn parse_name(name: &str) -> Option<(Kind, PathBuf)> {
    let rest = name.strip_prefix("byteback-")?.strip_suffix(".service")?;
    let kind = Kind::ALL
        .into_iter()
        .find(|kind| rest.starts_with(&format!("{}-", kind.verb())))?;
    let escaped = rest.get(kind.verb().len() + 1..)?;
    if escaped == "-" {
        return Some((kind, PathBuf::from("/")));
    }
    let mut path = vec![b'/'];
    let mut bytes = escaped.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'-' => path.push(b'/'),
            b'\\' => {
                let digits = [bytes.next()?, bytes.next()?, bytes.next()?];
                let digits = std::str::from_utf8(&digits).ok()?.strip_prefix('x')?.to_owned();
                path.push(u8::from_str_radix(&digits, 16).ok()?);
            }
            other => path.push(other),
        }
    }
    Some((kind, PathBuf::from(OsStr::from_bytes(&path))))
}

#[cfg(test)]
mod tests;
