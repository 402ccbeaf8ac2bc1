//! `byteback service`: systemd units that serve, mount and sync at each boot or login.
//!
//! There is one unit for each folder and each server; its name is `byteback-VERB-PATH.service`,
//! with the path as `systemd-escape --path` writes it. It runs the command in the foreground, with
//! the given flags, absolute paths, and the variables that say where tokens and state are; no unit
//! contains a token itself. System units are in `/etc/systemd/system`, those of a user in
//! `~/.config/systemd/user`.
//!
//! Files and links are written here (`places`), so that a system that is not running can be
//! prepared (`--root`); `systemctl` starts and stops the services.

mod places;
mod unit;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::{Args, Subcommand};
use serde::Serialize;

use self::places::{Places, Written};
use self::unit::{Kind, Unit, escape_path, parse_name};
use super::mount::MountArguments;
use super::serve::ServeArguments;
use super::sync::SyncArguments;
use crate::error::{CommandError, Result};
use crate::exit_code::Exit;
use crate::output::{Output, table};
use crate::settings::Settings;
use crate::throttling;
use crate::tracked_folder;

/// Flags of `service`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  byteback service install serve --data /srv/backup --listen 0.0.0.0:7117
  byteback service install sync /data/mail
  byteback service install mount /data/mail --mode fast
  byteback service status
  byteback service remove /data/mail

Services of root belong to the system and start at boot; those of other users start at login, or
at boot after 'loginctl enable-linger'.")]
pub(crate) struct ServiceArguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Write a unit, enable it, and start it
    Install(Box<Install>),
    /// List the installed services and their states
    Status(Place),
    /// Stop services, and remove what was installed
    Remove(Remove),
}

#[derive(Args, Debug)]
struct Place {
    /// Use the services of this user, which start at login (the default except for root)
    #[arg(long)]
    user: bool,
    /// Use the system below this directory, which is not running
    #[arg(long, value_name = "DIR", conflicts_with = "user")]
    root: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct Install {
    #[command(flatten)]
    place: Place,
    /// Do not start it now
    #[arg(long)]
    no_start: bool,
    /// Print the unit without changing anything
    #[arg(short = 'n', long)]
    dry_run: bool,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Run a server ('byteback serve')
    Serve(ServeArguments),
    /// Track a folder ('byteback mount')
    Mount(MountArguments),
    /// Keep a folder in sync ('byteback sync')
    Sync(SyncArguments),
}

#[derive(Args, Debug)]
struct Remove {
    #[command(flatten)]
    place: Place,
    /// Folders, data folders of servers, or names of units
    #[arg(value_name = "DIR", required = true)]
    paths: Vec<PathBuf>,
}

pub(crate) fn run(arguments: &ServiceArguments, settings: &Settings) -> Result<()> {
    match &arguments.verb {
        Verb::Install(arguments) => install(arguments, settings),
        Verb::Status(place) => status(place, settings),
        Verb::Remove(arguments) => remove(arguments, settings),
    }
}

/// The directory of the units that are meant.
fn places(place: &Place, settings: &Settings) -> Result<Places> {
    let is_of_user = place.user || (place.root.is_none() && !rustix::process::geteuid().is_root());
    let dir = match (&place.root, is_of_user) {
        (Some(root), _) => tracked_folder::canonical(root)?.join("etc/systemd/system"),
        (None, false) => PathBuf::from("/etc/systemd/system"),
        (None, true) => {
            let config = settings.config_home.as_ref().ok_or_else(|| {
                CommandError::new("cannot find the units of this user: HOME is not set")
                    .next("Set HOME or XDG_CONFIG_HOME.")
            })?;
            config.join("systemd/user")
        }
    };
    Ok(Places {
        dir,
        is_of_user,
        is_elsewhere: place.root.is_some(),
    })
}

/// The systemd instance that runs these units.
struct Manager<'a>(&'a Places);

impl<'a> Manager<'a> {
    fn of(places: &'a Places, settings: &Settings) -> Option<Self> {
        let socket = match places.is_of_user {
            false => PathBuf::from("/run/systemd/system"),
            true => settings.runtime_dir.as_ref()?.join("systemd/private"),
        };
        (!places.is_elsewhere && socket.exists()).then_some(Self(places))
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("systemctl");
        if self.0.is_of_user {
            command.arg("--user");
        }
        command.args(words).stdin(Stdio::null());
        command
    }

    /// Runs `systemctl`, which must succeed.
    fn order(&self, words: &[&str]) -> Result<()> {
        let said = self.command(words).output();
        let said = said.map_err(|error| CommandError::new(format!("cannot run systemctl: {error}")))?;
        if said.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&said.stderr);
        let what = words.join(" ");
        let failed = CommandError::new(format!("'systemctl {what}' failed: {}", text.trim()));
        let [_, unit] = words else { return Err(failed) };
        let whose = if self.0.is_of_user { "--user " } else { "" };
        Err(failed.next(format!("Its messages: journalctl {whose}-u '{unit}'")))
    }

    /// The state of a unit: `active`, `activating`, `failed`, `inactive`.
    fn state(&self, name: &str) -> String {
        let said = self.command(&["is-active", name]).output();
        let text = said.map(|said| String::from_utf8_lossy(&said.stdout).trim().to_owned());
        text.ok()
            .filter(|text| !text.is_empty())
            .unwrap_or_else(|| "unknown".to_owned())
    }
}

/// A unit to install.
struct Job {
    kind: Kind,
    path: PathBuf,
    arguments: Vec<OsString>,
    needs: Vec<PathBuf>,
    /// The process that already does the same in the background.
    runs_as: Option<u32>,
}

fn job(what: &What, places: &Places, settings: &Settings) -> Result<Job> {
    let (kind, given) = match what {
        What::Serve(serve) => {
            serve.check()?;
            let path = resolved(serve.data(), places)?;
            let guide = serve.guide().map(|guide| resolved(guide, places)).transpose()?;
            return Ok(Job {
                kind: Kind::Serve,
                arguments: serve.passed_on(&path),
                needs: [path.clone()].into_iter().chain(guide).collect(),
                path,
                runs_as: None,
            });
        }
        What::Mount(mount) => (Kind::Mount, Some(mount.places().0)),
        What::Sync(sync) => {
            sync.check()?;
            if let Some(flag) = sync.flag_for_once() {
                return Err(CommandError::new(format!(
                    "cannot install a service with {flag}: it is for a single start"
                ))
                .next("Run 'byteback sync' with it, and install the service without it."));
            }
            (Kind::Sync, sync.dir())
        }
    };
    let mut runs_as = None;
    let path = match (places.is_elsewhere, given) {
        (true, Some(given)) => resolved(given, places)?,
        (true, None) => {
            return Err(
                CommandError::new("no folder is given").next("Name it: byteback service install --root ROOT sync DIR")
            );
        }
        (false, given) => {
            let folder = match kind {
                Kind::Sync => tracked_folder::bound_folder(given, settings)?.folder,
                _ => tracked_folder::state_folder(given.unwrap_or(Path::new(".")), settings)?,
            };
            runs_as = running(&folder);
            folder.directory().to_owned()
        }
    };
    let mut needs = vec![path.clone()];
    let mut arguments = match what {
        What::Sync(sync) => sync.passed_on(),
        What::Mount(mount) => {
            let mut arguments = mount.passed_on();
            let (_, at, volume) = mount.places();
            for (flag, place) in [("--at", at), ("--volume", volume)] {
                if let Some(place) = place {
                    let place = resolved(place, places)?;
                    arguments.extend([flag.into(), place.clone().into()]);
                    needs.push(place);
                }
            }
            arguments
        }
        What::Serve(_) => Vec::new(),
    };
    arguments.extend(["--foreground".into(), "--".into(), path.clone().into()]);
    Ok(Job {
        kind,
        path,
        arguments,
        needs,
        runs_as,
    })
}

/// The process that already serves a folder.
fn running(folder: &byteback_daemon::StateFolder) -> Option<u32> {
    use byteback_control::TreeService;
    Some(tracked_folder::daemon(folder).ok()??.status().ok()?.pid)
}

/// The path in a form that does not depend on the current directory.
fn resolved(path: &Path, places: &Places) -> Result<PathBuf> {
    if places.is_elsewhere && !path.is_absolute() {
        return Err(CommandError::new(format!(
            "cannot install a unit for '{}': the path is not absolute",
            path.display()
        ))
        .next("With --root, give absolute paths as they are in that system."));
    }
    if !places.is_elsewhere && path.exists() {
        return tracked_folder::canonical(path);
    }
    std::path::absolute(path).map_err(|error| CommandError::file("find", path, &error))
}

#[derive(Serialize)]
struct Installed<'a> {
    unit: &'a str,
    path: String,
    changed: bool,
    started: bool,
}

fn install(arguments: &Install, settings: &Settings) -> Result<()> {
    let places = places(&arguments.place, settings)?;
    let output = settings.output;
    let job = job(&arguments.what, &places, settings)?;
    let shown = job.path.display();
    let name = job.kind.unit_name(&job.path).ok_or_else(|| {
        CommandError::new(format!(
            "cannot install a unit for {shown}: its name would be longer than systemd allows"
        ))
        .next("Use a shorter path, for example through a bind mount.")
    })?;
    let program = std::env::current_exe().and_then(std::fs::canonicalize);
    let program = program.map_err(|error| CommandError::new(format!("cannot find the byteback program: {error}")))?;
    let mut words = settings.of_flags();
    words.push(job.kind.verb().into());
    words.extend(job.arguments);
    let unit = Unit {
        kind: job.kind,
        path: &job.path,
        program: &program,
        arguments: &words,
        environment: &settings.of_services,
        needs: &job.needs,
        is_of_user: places.is_of_user,
    };
    let text = unit.text();
    if arguments.dry_run {
        output.say(format!("# {}", places.unit_path(&name).display()))?;
        return output.line(text.trim_end());
    }
    let mine = escape_path(&job.path);
    let other = places.all()?.into_iter().find(|other| {
        *other != name
            && parse_name(other).is_some_and(|(kind, path)| {
                kind != Kind::Serve && job.kind != Kind::Serve && escape_path(&path) == mine
            })
    });
    if let Some(other) = other {
        return Err(
            CommandError::with_exit(Exit::Locked, format!("{shown} already has a service: {other}"))
                .next(format!("Remove it first: byteback service remove {shown}")),
        );
    }
    if let What::Sync(sync) = &arguments.what
        && !sync.limit_rate().is_empty()
        && !places.is_elsewhere
    {
        // Recorded with the folder, where 'byteback sync --limit-rate' can change it at any time.
        let limits = throttling::limits(sync.limit_rate())?;
        let folder = tracked_folder::bound_folder(sync.dir(), settings)?.folder;
        throttling::change(&folder, |wish| wish.limits = limits)?;
    }
    let written = places.install(&name, &text)?;
    let manager = Manager::of(&places, settings);
    let mut started = false;
    if let Some(manager) = &manager {
        manager.order(&["daemon-reload"])?;
        let runs_by_itself = job.runs_as.is_some() && manager.state(&name) != "active";
        if !arguments.no_start && !runs_by_itself {
            manager.order(&["start", &name])?;
            started = true;
        }
    }
    if output.json {
        let path = shown.to_string();
        let changed = written != Written::Same;
        return output.object(
            "summary",
            &Installed {
                unit: &name,
                path,
                changed,
                started,
            },
        );
    }
    let when = if places.is_of_user { "login" } else { "boot" };
    let what = match written {
        Written::New => "is installed",
        Written::Changed => "is updated",
        Written::Same => "was already installed",
    };
    output.say(format!("{name} {what}; it starts at each {when}."))?;
    let systemctl = if places.is_of_user {
        "systemctl --user"
    } else {
        "systemctl"
    };
    match (&manager, started, job.runs_as) {
        (None, ..) => output.say(format!(
            "  systemd is not running here, so it waits for the next {when}."
        )),
        (Some(_), true, _) if written == Written::Changed => output.say(format!(
            "  If it was running, it keeps its old flags until: {systemctl} restart '{name}'"
        )),
        (Some(_), true, _) => output.say("  It runs: byteback service status"),
        (Some(_), false, Some(pid)) => output.say(format!(
            "  {shown} is already mounted, by process {pid}. To hand it to systemd now: \
             byteback umount {shown} && {systemctl} start '{name}'"
        )),
        (Some(_), false, None) => output.say(format!("  To start it now: {systemctl} start '{name}'")),
    }
}

#[derive(Serialize)]
struct StatusLine {
    unit: String,
    kind: &'static str,
    path: String,
    enabled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<String>,
}

fn status(place: &Place, settings: &Settings) -> Result<()> {
    let places = places(place, settings)?;
    let manager = Manager::of(&places, settings);
    let lines = places.all()?.into_iter().filter_map(|name| {
        let (kind, path) = parse_name(&name)?;
        Some(StatusLine {
            kind: kind.verb(),
            path: path.display().to_string(),
            enabled: places.is_enabled(&name),
            state: manager.as_ref().map(|manager| manager.state(&name)),
            unit: name,
        })
    });
    let lines: Vec<StatusLine> = lines.collect();
    print_status(&lines, &places, settings.output)?;
    // A unit that is down although its manager runs is a failure.
    let is_down = |line: &StatusLine| line.state.as_ref().is_some_and(|state| state != "active");
    match lines.iter().any(is_down) {
        true => Err(CommandError::Reported(Exit::Failed)),
        false => Ok(()),
    }
}

fn print_status(lines: &[StatusLine], places: &Places, output: Output) -> Result<()> {
    if output.json {
        return lines.iter().try_for_each(|line| output.object("service", line));
    }
    if lines.is_empty() {
        return output.say(format!(
            "No service is installed in {}. Begin with: byteback service install --help",
            places.dir.display()
        ));
    }
    let rows: Vec<[String; 4]> = lines
        .iter()
        .map(|line| {
            let starts = match (line.enabled, places.is_of_user) {
                (false, _) => "no",
                (true, false) => "at boot",
                (true, true) => "at login",
            };
            [
                format!("{} {}", line.kind, line.path),
                starts.to_owned(),
                line.state
                    .clone()
                    .unwrap_or_else(|| "systemd is not running".to_owned()),
                line.unit.clone(),
            ]
        })
        .collect();
    table(output, ["Service", "Starts", "State", "Unit"], &rows)
}

#[derive(Serialize)]
struct Removed {
    units: Vec<String>,
}

fn remove(arguments: &Remove, settings: &Settings) -> Result<()> {
    let places = places(&arguments.place, settings)?;
    let output = settings.output;
    let installed = places.all()?;
    let mut units: Vec<String> = Vec::new();
    for given in &arguments.paths {
        let named = given.to_str().filter(|name| installed.iter().any(|unit| unit == name));
        let escaped = match named {
            Some(_) => None,
            None => Some(escape_path(&resolved(given, &places)?)),
        };
        let is_meant = |name: &&String| match &escaped {
            None => Some(name.as_str()) == named,
            Some(escaped) => parse_name(name).is_some_and(|(_, path)| escape_path(&path) == *escaped),
        };
        let before = units.len();
        units.extend(installed.iter().filter(is_meant).cloned());
        if units.len() == before {
            return Err(
                CommandError::new(format!("no service is installed for {}", given.display()))
                    .next("'byteback service status' lists the installed services."),
            );
        }
    }
    units.dedup();
    let manager = Manager::of(&places, settings);
    for name in &units {
        if let Some(manager) = &manager {
            manager.order(&["stop", name])?;
        }
        places.remove(name)?;
    }
    if let Some(manager) = &manager {
        manager.order(&["daemon-reload"])?;
        for name in &units {
            // Otherwise systemd remembers a failed unit. For most units this fails: they had not
            // failed.
            let _ = manager.order(&["reset-failed", name]);
        }
    }
    if output.json {
        return output.object("summary", &Removed { units });
    }
    for name in &units {
        output.say(format!("{name} is removed."))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
