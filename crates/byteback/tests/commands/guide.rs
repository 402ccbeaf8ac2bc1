//! `byteback serve --guide`.

use std::fs;
use std::process::Stdio;

use byteback_testkit::command::ServerProcess;
use byteback_testkit::waiting::eventually;

use crate::world::World;

#[test]
fn guide_without_index_refuses_the_start() {
    let world = World::new();
    let (data, guide) = (world.path("data"), world.path("guide"));
    let words = [
        "serve",
        "--data",
        data.to_str().unwrap(),
        "--listen",
        "127.0.0.1:0",
        "--guide",
        guide.to_str().unwrap(),
    ];
    let named = format!("cannot show the guide {}: ", guide.display());
    world
        .run(&words)
        .ends_with(1)
        .says(&format!("{named}No such file or directory"))
        .says("scripts/book");
    fs::create_dir(&guide).unwrap();
    world
        .run(&words)
        .ends_with(1)
        .says(&format!("{named}index.html is missing"))
        .says("scripts/book");
    assert!(!data.exists(), "nothing was made");
}

#[test]
fn guide_address_is_printed_at_the_start() {
    let world = World::new();
    let (data, guide) = (world.path("data"), world.path("guide"));
    fs::create_dir(&guide).unwrap();
    fs::write(guide.join("index.html"), "guide").unwrap();
    let out = world.path("out");
    let words = ["serve", "--data", data.to_str().unwrap(), "--listen", "127.0.0.1:0"];
    let mut command = world.command(&[&words[..], &["--guide", "guide"]].concat());
    let server = ServerProcess::start(command.stderr(Stdio::null()), &out);
    let place = eventually("the guide's place is told", || server.line_after("The guide is at "));
    assert_eq!(place, format!("{}/guide/", server.url()));
}

#[test]
fn guide_of_a_service_is_an_absolute_path() {
    let world = World::new();
    let guide = world.path("guide");
    let guide = guide.to_str().unwrap();
    world
        .run(&[
            "service", "install", "-n", "serve", "--data", "data", "--guide", "guide",
        ])
        .fine()
        .says(&format!(" --guide {guide}\n"))
        .says(&format!("RequiresMountsFor={guide}\n"));
}
