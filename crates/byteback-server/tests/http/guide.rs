//! The guide below `/guide/`.

use crate::World;
use crate::client::{Answer, request};
use byteback_server::{Guide, GuideError};
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

/// Longer than some pieces in which files are read, and no multiple of them.
const LONG_LEN: usize = 300_001;

/// A server with a guide, beside which lies a file that is not part of it.
struct Shown {
    world: World,
    dir: tempfile::TempDir,
}

impl Shown {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("secret.txt"), "secret").unwrap();
        let pages = dir.path().join("pages");
        fs::create_dir_all(pages.join("deep/empty")).unwrap();
        fs::write(pages.join("index.html"), "<h1>Guide</h1>").unwrap();
        fs::write(pages.join("deep/index.html"), "<h1>Deep</h1>").unwrap();
        fs::write(pages.join(".hidden"), "hidden").unwrap();
        for extension in ["css", "js", "svg", "png", "woff2", "json", "txt", "bin"] {
            fs::write(pages.join(format!("a-b_1.{extension}")), extension).unwrap();
        }
        let long: Vec<u8> = (0..LONG_LEN).map(|at| (at % 251) as u8).collect();
        fs::write(pages.join("long.txt"), long).unwrap();
        let guide = Guide::open(&pages).unwrap();
        let world = World::with(|config| config.guide = Some(guide));
        Self { world, dir }
    }

    fn pages(&self) -> std::path::PathBuf {
        self.dir.path().join("pages")
    }

    /// Asks without a token.
    fn ask(&self, method: &str, target: &str) -> Answer {
        request(self.world.server.address(), method, target, None, b"", &[])
    }

    fn get(&self, target: &str) -> Answer {
        self.ask("GET", target)
    }
}

#[test]
fn guide_pages_have_their_types_and_a_policy() {
    let shown = Shown::new();
    for (page, media, body) in [
        ("", "text/html; charset=utf-8", "<h1>Guide</h1>"),
        ("index.html", "text/html; charset=utf-8", "<h1>Guide</h1>"),
        ("index.html?highlight=a", "text/html; charset=utf-8", "<h1>Guide</h1>"),
        ("deep/", "text/html; charset=utf-8", "<h1>Deep</h1>"),
        ("a-b_1.css", "text/css; charset=utf-8", "css"),
        ("a-b_1.js", "text/javascript; charset=utf-8", "js"),
        ("a-b_1.svg", "image/svg+xml", "svg"),
        ("a-b_1.png", "image/png", "png"),
        ("a-b_1.woff2", "font/woff2", "woff2"),
        ("a-b_1.json", "application/json", "json"),
        ("a-b_1.txt", "text/plain; charset=utf-8", "txt"),
        ("a-b_1.bin", "application/octet-stream", "bin"),
    ] {
        let answer = shown.get(&format!("/guide/{page}")).expect(200);
        assert!(answer.complete, "{page}");
        assert_eq!(answer.header("content-type"), media, "{page}");
        assert_eq!(answer.header("content-length"), body.len().to_string(), "{page}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{page}");
        let policy = answer.header("content-security-policy");
        assert!(policy.starts_with("default-src 'self';"), "{page}: {policy}");
        assert!(!policy.contains("unsafe"), "{page}: {policy}");
        assert_eq!(answer.body, body.as_bytes(), "{page}");
    }
}

#[test]
fn guide_file_of_many_pieces_is_whole() {
    let shown = Shown::new();
    let answer = shown.get("/guide/long.txt").expect(200);
    assert!(answer.complete);
    assert_eq!(answer.body, fs::read(shown.pages().join("long.txt")).unwrap());
    // An empty file is no broken one.
    fs::write(shown.pages().join("empty.txt"), "").unwrap();
    let empty = shown.get("/guide/empty.txt").expect(200);
    assert!(empty.complete && empty.body.is_empty());
}

#[test]
fn guide_head_has_the_length_and_no_body() {
    let shown = Shown::new();
    let answer = shown.ask("HEAD", "/guide/long.txt").expect(200);
    assert_eq!(answer.header("content-length"), LONG_LEN.to_string());
    assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
    assert!(answer.body.is_empty());
    shown.ask("HEAD", "/guide/none.html").expect(404);
}

#[test]
fn guide_refuses_paths_that_are_no_names() {
    let shown = Shown::new();
    for path in [
        "../secret.txt",
        "deep/../../secret.txt",
        "deep/..",
        "./index.html",
        "%2e%2e/secret.txt",
        "%2E%2E%2Fsecret.txt",
        "..%2fsecret.txt",
        "%252e%252e%252fsecret.txt",
        "..%5csecret.txt",
        "..%c0%afsecret.txt",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "deep//index.html",
        "index.html%00.txt",
        "..;/secret.txt",
        ".hidden",
    ] {
        let answer = shown.get(&format!("/guide/{path}"));
        let detail = answer.problem(400, "invalid_parameter")["detail"].to_string();
        assert!(!detail.contains(shown.dir.path().to_str().unwrap()), "{detail}");
    }
    // The addresses above the guide still need a token.
    shown.get("/guide/../v1/folders").expect(400);
    shown.get("/v1/folders").problem(401, "unauthorized");
}

#[test]
fn guide_follows_no_link_out_of_its_folder() {
    let shown = Shown::new();
    let pages = shown.pages();
    let outside = |path: &str| Path::new("..").join(path);
    symlink(outside("secret.txt"), pages.join("relative.txt")).unwrap();
    symlink(shown.dir.path().join("secret.txt"), pages.join("absolute.txt")).unwrap();
    symlink("..", pages.join("up")).unwrap();
    symlink("relative.txt", pages.join("twice.txt")).unwrap();
    symlink("loop.txt", pages.join("loop.txt")).unwrap();
    symlink("/proc/self/exe", pages.join("proc.txt")).unwrap();
    for path in [
        "relative.txt",
        "absolute.txt",
        "up/secret.txt",
        "twice.txt",
        "loop.txt",
        "proc.txt",
    ] {
        shown.get(&format!("/guide/{path}")).problem(404, "route_not_found");
    }
    // A link to another page of the guide is one of its pages.
    symlink("deep/index.html", pages.join("inside.html")).unwrap();
    assert_eq!(shown.get("/guide/inside.html").expect(200).body, b"<h1>Deep</h1>");
}

#[test]
fn guide_shows_neither_listings_nor_special_files() {
    let shown = Shown::new();
    shown.get("/guide/deep/empty/").problem(404, "route_not_found");
    shown.get("/guide/none.html").problem(404, "route_not_found");
    shown.get("/guide/index.html/more.html").problem(404, "route_not_found");
    shown.get(&format!("/guide/{}", "a".repeat(300))).expect(404);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        shown.pages().join("pipe.txt"),
        rustix::fs::FileType::Fifo,
        0o644.into(),
        0,
    )
    .unwrap();
    let _listener = UnixListener::bind(shown.pages().join("socket.txt")).unwrap();
    shown.get("/guide/pipe.txt").problem(404, "route_not_found");
    shown.get("/guide/socket.txt").problem(404, "route_not_found");
    assert!(shown.world.reports.lock().unwrap().is_empty());
}

#[test]
fn guide_address_without_last_slash_is_completed() {
    let shown = Shown::new();
    for (asked, location) in [("/guide", "/guide/"), ("/guide/deep", "/guide/deep/")] {
        let answer = shown.get(asked).expect(308);
        assert_eq!(answer.header("location"), location);
    }
}

#[test]
fn guide_is_only_read() {
    let shown = Shown::new();
    for method in ["PUT", "POST", "DELETE", "OPTIONS"] {
        let answer = request(
            shown.world.server.address(),
            method,
            "/guide/new.txt",
            None,
            b"new",
            &[],
        );
        answer.problem(405, "method_not_allowed");
    }
    assert!(!shown.pages().join("new.txt").exists());
}

#[test]
fn guide_built_again_is_shown_at_once() {
    let shown = Shown::new();
    fs::remove_dir_all(shown.pages()).unwrap();
    shown.get("/guide/").problem(500, "internal");
    assert_eq!(shown.world.reports.lock().unwrap().len(), 1);
    fs::create_dir(shown.pages()).unwrap();
    fs::write(shown.pages().join("index.html"), "new").unwrap();
    assert_eq!(shown.get("/guide/").expect(200).body, b"new");
}

#[test]
fn guide_that_is_not_given_is_not_found() {
    let world = World::new();
    for path in ["/guide", "/guide/", "/guide/index.html", "/guide/../x"] {
        let answer = request(world.server.address(), "GET", path, None, b"", &[]);
        let problem = answer.problem(404, "route_not_found");
        assert!(problem["detail"].as_str().unwrap().contains("serve --guide DIR"));
    }
}

#[test]
fn guide_folder_without_index_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = Guide::open(dir.path()).unwrap_err();
    assert!(matches!(refused, GuideError::NoIndex { .. }), "{refused}");
    fs::create_dir(dir.path().join("index.html")).unwrap();
    let refused = Guide::open(dir.path()).unwrap_err();
    assert!(matches!(refused, GuideError::NoIndex { .. }), "{refused}");
    let missing = dir.path().join("missing");
    let refused = Guide::open(&missing).unwrap_err();
    assert!(matches!(refused, GuideError::Unreadable { .. }), "{refused}");
    let named = format!("cannot show the guide {}: ", missing.display());
    assert!(refused.to_string().starts_with(&named), "{refused}");
}
