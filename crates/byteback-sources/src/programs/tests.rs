use super::*;

fn programs() -> Programs {
    Programs::new(["/usr/bin", "/bin"].map(PathBuf::from))
}

fn said(name: &'static str, arguments: &[&str]) -> Result<Vec<String>> {
    let arguments: Vec<_> = arguments.iter().map(OsStr::new).collect();
    let mut lines = Vec::new();
    programs().run(name, &arguments, &[("ANSWER", OsStr::new("42"))], |line| {
        lines.push(String::from_utf8_lossy(line).into_owned());
        Ok(())
    })?;
    Ok(lines)
}

#[test]
fn a_program_is_run_with_what_it_is_given() {
    assert_eq!(said("printf", &["a\\n\\nb c"]).unwrap(), ["a", "", "b c"]);
    assert_eq!(said("true", &[]).unwrap(), [""; 0]);
    // Our own environment is not inherited, and the input is empty.
    let environment = said("env", &[]).unwrap();
    let names: Vec<_> = environment.iter().filter_map(|line| line.split('=').next()).collect();
    for wanted in ["ANSWER", "LC_ALL", "PATH", "TZ"] {
        assert!(names.contains(&wanted), "{names:?}");
    }
    assert_eq!(names.len(), 4, "{names:?}");
    assert_eq!(said("cat", &[]).unwrap(), [""; 0]);
}

#[test]
fn a_program_that_is_missing_or_fails_is_named() {
    let missing = said("byteback-no-such-program", &[]);
    assert!(matches!(missing, Err(SourceError::NoProgram { .. })), "{missing:?}");
    // The current folder is not searched.
    let nowhere = Programs::new(["bin", ""].map(PathBuf::from));
    let missing = nowhere.run("true", &[], &[], |_| Ok(()));
    assert!(matches!(missing, Err(SourceError::NoProgram { .. })), "{missing:?}");
    let SourceError::Program { name, said: complaint } =
        said("sh", &["-c", "echo x; echo broken >&2; exit 3"]).unwrap_err()
    else {
        panic!()
    };
    assert_eq!((name, &complaint[..]), ("sh", "broken"));
    // A complaint may contain a name with control characters for terminals.
    let error = said(
        "sh",
        &["-c", "printf 'no \\033[2J\\302\\233file\\7\\r\\nat all' >&2; exit 1"],
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "sh failed: no \u{fffd}[2J\u{fffd}file\u{fffd}\u{fffd}\nat all"
    );
    let error = said("sh", &["-c", "kill -9 $$"]).unwrap_err().to_string();
    assert!(error.contains("signal: 9"), "{error}");
    // More complaints than are kept, before and behind the output.
    let lines = said(
        "sh",
        &["-c", "yes | head -c 1000000 >&2; echo x; yes | head -c 1000000 >&2"],
    )
    .unwrap();
    assert_eq!(lines, ["x"]);
}

#[test]
fn program_that_may_not_run_is_skipped_and_told_if_it_is_alone() {
    use std::os::unix::fs::PermissionsExt;

    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let all = Programs::new(folders.iter().map(|folder| folder.path().to_owned()));
    let put = |number: usize, mode| {
        let path = folders[number].path().join("program");
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        path
    };
    let missing = all.find("program");
    assert!(matches!(missing, Err(SourceError::NoProgram { .. })), "{missing:?}");
    let closed = put(0, 0o644);
    let said = all.find("program").unwrap_err().to_string();
    assert!(said.contains(&format!("may not run {}", closed.display())), "{said}");
    let second = put(1, 0o755);
    assert_eq!(all.find("program").unwrap(), second);
    let first = put(0, 0o755);
    assert_eq!(all.find("program").unwrap(), first);
    // A folder of that name does not count.
    std::fs::remove_file(&first).unwrap();
    std::fs::create_dir(&first).unwrap();
    assert_eq!(all.find("program").unwrap(), second);
}

#[test]
fn a_program_that_says_too_much_is_ended() {
    let mut lines = 0;
    let ended = programs().run("yes", &[], &[], |_| {
        lines += 1;
        match lines {
            1000 => Err(SourceError::Malformed("enough")),
            _ => Ok(()),
        }
    });
    assert!(matches!(ended, Err(SourceError::Malformed("enough"))), "{ended:?}");
    let ended = said("sh", &["-c", "head -c 2000000 /dev/zero; yes"]);
    assert!(matches!(ended, Err(SourceError::Malformed("a line that is too long"))));
    let longest = vec![b'x'; LINE_LEN_MAX];
    for (end, is_fine) in [(&b"\ny"[..], true), (b"", true), (b"x\n", false)] {
        let text = [&longest[..], end].concat();
        assert_eq!(each_line(&text[..], &mut |_| Ok(())).is_ok(), is_fine);
    }
}
