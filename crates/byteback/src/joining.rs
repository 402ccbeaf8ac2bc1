//! How this machine becomes a device of a server: with a code, or with a bare join token.
//!
//! Order of the steps, and what a crash leaves: (1) the device's own token is drawn and kept in a
//! draft; (2) the server is asked, which uses up the code for this token; (3) the token file is
//! written, the draft removed. After a crash before 2, nothing has happened. After a crash between
//! 2 and 3, the same command finds the draft, asks again, and gets the same answer. A machine that
//! already has a token of the server presents that one, and gets the rights of the code in
//! addition.

use std::fs;
use std::io::Read;
use std::path::Path;

use byteback_api::join_code::{CODE_PREFIX, ParseJoinCodeError};
use byteback_api::messages::{JoinRequest, JoinResponse};
use byteback_api::problem::Code;
use byteback_api::{Fingerprint, JoinCode};
use byteback_client::{CertificateChanged, ServerErrorKind, join};

use crate::credentials::{self, Credentials};
use crate::error::{CommandError, Result};
use crate::exit_code::Exit;
use crate::served::names_this_machine;
use crate::settings::Settings;

/// Longest text that may be a code, in bytes.
const CODE_LEN_MAX: u64 = 8192;

/// The text that this machine was given to join with.
pub(crate) enum Voucher {
    /// A complete code.
    Code(Box<JoinCode>),
    /// The bare token, as servers issued it before there were codes.
    Token(String),
}

impl Voucher {
    /// Parses the given text.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        if text.is_empty() {
            return Err(refused("the code is empty"));
        }
        if text.starts_with("bbj_") {
            return Ok(Self::Token(text.to_owned()));
        }
        code(text).map(|code| Self::Code(Box::new(code)))
    }

    fn token(&self) -> String {
        match self {
            Self::Code(code) => code.join_token(),
            Self::Token(token) => token.clone(),
        }
    }

    fn certificate(&self) -> Option<Fingerprint> {
        match self {
            Self::Code(code) => code.fingerprint,
            Self::Token(_) => None,
        }
    }

    /// Checks that the scheme of `url` is the one that the code's server speaks.
    pub(crate) fn check_scheme(&self, url: &str) -> Result<()> {
        let Self::Code(code) = self else { return Ok(()) };
        if code.is_plain == url.starts_with("http://") {
            return Ok(());
        }
        let (speaks, scheme) = match code.is_plain {
            true => ("plain HTTP", "http"),
            false => ("TLS", "https"),
        };
        let message = format!("the code is for a server that speaks {speaks}, but {url} has another scheme");
        Err(CommandError::new(message).next(format!("Write {scheme}:// instead.")))
    }
}

fn refused(message: impl Into<String>) -> CommandError {
    CommandError::with_exit(Exit::WrongCredentials, message)
        .next("Make a new one on the server: byteback invite FOLDER --data DIR")
}

/// Parses a code.
pub(crate) fn code(text: &str) -> Result<JoinCode> {
    text.parse().map_err(|error: ParseJoinCodeError| {
        let failed = CommandError::with_exit(Exit::WrongCredentials, error.to_string());
        failed.next(match error {
            ParseJoinCodeError::NoCode => format!(
                "'byteback invite' makes one; it begins with {CODE_PREFIX}. To pass it on standard input, write -; to \
                 read it from a file, give a path with a slash in it."
            ),
            ParseJoinCodeError::Mistyped => {
                "Copy the whole code again. Nothing was sent; it is still valid.".to_owned()
            }
            ParseJoinCodeError::Version(_) => "Update Byteback on this machine to the server's version.".to_owned(),
            ParseJoinCodeError::Nonsense => "Make a new one on the server: byteback invite".to_owned(),
        })
    })
}

/// The text that an argument stands for: itself, or standard input if it is `-`.
pub(crate) fn given_text(argument: &str) -> Result<String> {
    if argument != "-" {
        return Ok(argument.to_owned());
    }
    let mut text = String::new();
    let read = std::io::stdin().lock().take(CODE_LEN_MAX).read_to_string(&mut text);
    read.map_err(|error| CommandError::new(format!("cannot read the code from standard input: {error}")))?;
    Ok(text)
}

/// The text in a file.
pub(crate) fn text_in(path: &Path) -> Result<String> {
    if path.as_os_str() == "-" {
        return given_text("-");
    }
    let mut text = String::new();
    fs::File::open(path)
        .and_then(|file| file.take(CODE_LEN_MAX).read_to_string(&mut text))
        .map_err(|error| CommandError::file("read the code from", path, &error))?;
    Ok(text)
}

/// A machine that has joined.
pub(crate) struct Joined {
    /// The credentials that the machine presents from now on.
    pub(crate) credentials: Credentials,
    /// The server's answer.
    pub(crate) answer: JoinResponse,
}

/// Joins the server at `server` and keeps the token in `token_path`.
pub(crate) fn join_server(voucher: &Voucher, server: &str, settings: &Settings, token_path: &Path) -> Result<Joined> {
    voucher.check_scheme(server)?;
    let draft_path = credentials::draft_path(token_path);
    let is_of_this = |kept: &Credentials| kept.server == server && kept.certificate == voucher.certificate();
    let known = credentials::read(token_path)?.filter(is_of_this);
    let known = match known {
        // A token that this server does not know was for another server, which has seen it.
        Some(known) => match settings.client(&known)?.folders() {
            Err(error) if error.kind == ServerErrorKind::WrongToken => None,
            _ => Some(known),
        },
        None => None,
    };
    let draft = match known {
        Some(known) => Some(known),
        // An unreadable draft is of no use.
        None => credentials::read(&draft_path).ok().flatten().filter(is_of_this),
    };
    let (mut token, mut is_new) = match draft {
        Some(draft) => (draft.token, false),
        None => (byteback_store::token::new_device_token()?, true),
    };
    loop {
        let mut credentials = Credentials {
            server: server.to_owned(),
            device: 0,
            token,
            certificate: voucher.certificate(),
            addresses: other_addresses(voucher, server),
        };
        credentials::write(&draft_path, &credentials)
            .map_err(|error| error.next("The code was not used. Choose another file with --token-file."))?;
        let request = JoinRequest {
            join_token: voucher.token(),
            name: settings.host(None).to_string(),
            device_token: Some(credentials.token.clone()),
        };
        match join(server, &request, settings.options_for(&credentials)?) {
            Ok(answer) => {
                credentials.device = answer.device_id;
                // A server that does not know tokens drawn by devices has drawn one itself.
                credentials.token.clone_from(&answer.token);
                credentials::write(token_path, &credentials).map_err(|error| {
                    error.next("Run the same command again: the server recognizes this machine by the token it showed.")
                })?;
                // A draft that stays is replaced by the next one.
                let _ = fs::remove_file(&draft_path);
                return Ok(Joined { credentials, answer });
            }
            // The existing token was revoked.
            Err(error)
                if !is_new
                    && error
                        .problem
                        .as_ref()
                        .is_some_and(|problem| problem.code == Code::DeviceRevoked) =>
            {
                token = byteback_store::token::new_device_token()?;
                is_new = true;
            }
            Err(error) => {
                // Unless the answer was lost, the server has not heard of this token.
                if is_new && !matches!(error.kind, ServerErrorKind::Unreachable | ServerErrorKind::Busy) {
                    let _ = fs::remove_file(&draft_path);
                }
                let is_away = error.kind == ServerErrorKind::Unreachable && names_this_machine(server);
                let explained = explained(error, server);
                return Err(match voucher {
                    Voucher::Code(_) if is_away => explained.next(
                        "Check that the server is running (byteback serve). The code names this machine itself; if the \
                         server is another machine, make a code there with 'byteback invite --address HOST'.",
                    ),
                    _ => explained,
                });
            }
        }
    }
}

/// The other addresses of the code; none if `server` is not one of its addresses.
fn other_addresses(voucher: &Voucher, server: &str) -> Vec<String> {
    let Voucher::Code(code) = voucher else {
        return Vec::new();
    };
    let used = server.split_once("://").map_or(server, |(_, address)| address);
    let all: Vec<String> = code.addresses.iter().map(ToString::to_string).collect();
    // A user who names another way to the server wants that one: a tunnel, a proxy.
    match all.iter().any(|address| address == used) {
        true => all.into_iter().filter(|address| address != used).collect(),
        false => Vec::new(),
    }
}

fn explained(error: byteback_client::ServerError, server: &str) -> CommandError {
    let is_other = error
        .source
        .as_ref()
        .is_some_and(|source| source.to_string().contains("it shows another certificate"));
    let changed: Option<&CertificateChanged> = error.source.as_ref().and_then(|source| source.downcast_ref());
    if is_other || changed.is_some() {
        return CommandError::with_exit(
            Exit::WrongCredentials,
            format!("the server at {server} is not the one in the code"),
        )
        .next(
            "Its certificate is not the one in the code; nothing was sent. If the server was set up anew, ask for a \
                 new code.",
        );
    }
    let code = error.problem.as_ref().map(|problem| problem.code);
    let joining = matches!(
        code,
        Some(Code::JoinTokenInvalid | Code::JoinTokenUsed | Code::JoinTokenExpired | Code::JoinTokenWithdrawn)
    );
    if !joining {
        return error.into();
    }
    let message = error
        .problem
        .as_ref()
        .map(|problem| problem.detail.clone())
        .unwrap_or_default();
    CommandError::with_exit(Exit::WrongCredentials, message).next(error.next)
}
