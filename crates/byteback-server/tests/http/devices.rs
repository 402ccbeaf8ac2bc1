//! Access rights of devices, over the wire.

use super::*;
use byteback_store::devices::{NewInvitation, RosterFile};
use serde_json::{Value, json};
use std::io::Read;
use std::net::Shutdown;

/// Calls that a device may make whatever it was given: none of them reveals a folder that it was
/// not given.
const OF_NO_FOLDER: [(&str, &str); 6] = [
    ("GET", "/healthz"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/v1/line"),
    ("POST", "/v1/devices"),
    ("GET", "/v1/folders"),
];

impl World {
    /// A device that was given one folder.
    fn device_of(&self, folder: &str, writes: bool) -> (u64, String) {
        let invited = self.store.roster().invite(&NewInvitation {
            folder: Some(folder.to_owned()),
            writes,
            name: String::new(),
            valid_ns: i64::MAX / 2,
        });
        let joined = self.store.roster().join(&invited.unwrap().token, "d", None).unwrap();
        (joined.device, joined.token)
    }

    fn send_as(&self, token: &str, method: &str, target: &str, body: &[u8]) -> Answer {
        request(self.server.address(), method, target, Some(token), body, &[])
    }

    fn post(&self, target: &str, body: &Value) -> Answer {
        self.send("POST", target, body.to_string().as_bytes())
    }
}

/// Every call in the served document, with parameters that exist.
fn calls(world: &World) -> Vec<(String, String, String)> {
    let document = world.get("/openapi.json").expect(200).json();
    let mut calls = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let mut target = path.clone();
        let node = FILE.to_string();
        for (name, value) in [
            ("folder", "f"),
            ("node", node.as_str()),
            ("counter", "1"),
            ("part", "1"),
            ("snapshot", "1"),
            ("device", "1"),
            ("invitation", "1"),
        ] {
            target = target.replace(&format!("{{{name}}}"), value);
        }
        assert!(!target.contains('{'), "{path}: tell this test what to put there");
        for method in item.as_object().unwrap().keys().filter(|key| *key != "parameters") {
            calls.push((method.to_uppercase(), path.clone(), target.clone()));
        }
    }
    assert!(calls.len() >= Route::ALL.len());
    calls
}

#[test]
fn device_of_another_folder_is_refused_by_every_documented_call() {
    let world = World::new();
    let content = noise(1, 1000);
    world.commit(1, &world.first(1, &content)).expect(200);
    let (_, token) = world.device_of("g", true);
    let mut refused = 0;
    for (method, path, target) in calls(&world) {
        let answer = world.send_as(&token, &method, &target, b"{}");
        let body = String::from_utf8_lossy(&answer.body).into_owned();
        if OF_NO_FOLDER.contains(&(method.as_str(), path.as_str())) {
            assert!(path != "/v1/folders" || !body.contains("\"f\""), "{body}");
            continue;
        }
        assert!(matches!(answer.status, 403 | 404), "{method} {path}: {body}");
        answer.problem(403, "forbidden");
        // The device does not learn whether there is such a folder, either.
        let nowhere = world.send_as(
            &token,
            &method,
            &target.replace("/folders/f", "/folders/nowhere"),
            b"{}",
        );
        assert_eq!(
            body.replace("'f'", "'nowhere'"),
            String::from_utf8_lossy(&nowhere.body),
            "{method} {path}"
        );
        refused += 1;
    }
    assert_eq!(refused, Route::ALL.len() - OF_NO_FOLDER.len());
    // The device's own folder is open to it, and nothing in the other one has changed.
    world.send_as(&token, "GET", "/v1/folders/g", b"").expect(200);
    let folders = world.send_as(&token, "GET", "/v1/folders", b"").expect(200).json();
    assert_eq!(folders["folders"].as_array().unwrap().len(), 1);
    assert_eq!(folders["folders"][0]["name"], "g");
    assert_eq!(world.get("/v1/folders/f").expect(200).json()["seq"], 1);
    assert_eq!(
        world.get("/v1/devices").expect(200).json()["devices"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

#[test]
fn a_device_that_may_only_read_changes_nothing() {
    let world = World::new();
    let content = noise(1, 1000);
    world.commit(1, &world.first(1, &content)).expect(200);
    let (_, token) = world.device_of("f", false);
    for route in Route::ALL.iter().filter(|route| route.path().contains("{folder}")) {
        let (method, path) = (route.method().as_str(), route.path());
        let (_, _, target) = calls(&world)
            .into_iter()
            .find(|call| call.0 == method && call.1 == path)
            .unwrap();
        // Events would be answered without an end.
        let target = target.replace("/events", "/events?after=77");
        let answer = world.send_as(&token, method, &target, b"{}");
        let is_refused = answer.status == 403;
        assert_eq!(
            is_refused,
            route.access() == Access::Writes,
            "{route:?}: {}",
            answer.status
        );
    }
    let target = format!("/v1/folders/f/nodes/{FILE}/content");
    assert_eq!(world.send_as(&token, "GET", &target, b"").expect(200).body, content);
    let folder = world.get("/v1/folders/f").expect(200).json();
    assert_eq!((&folder["seq"], &folder["snapshots"]), (&1.into(), &1.into()));
}

#[test]
fn devices_are_invited_listed_renamed_and_revoked() {
    let world = World::new();
    let join = |code: &str, own: &str| {
        let body = json!({"join_token": code, "name": "host", "device_token": own}).to_string();
        request(
            world.server.address(),
            "POST",
            "/v1/devices",
            None,
            body.as_bytes(),
            &[],
        )
    };
    let own = format!("bbd_{}", "A".repeat(43));
    let asked = json!({"folder": "mail", "name": "kitchen", "valid_ns": 60_000_000_000_u64});
    let invited = world.post("/v1/invitations", &asked).expect(201).json();
    assert_eq!(invited["folder_is_new"], true);
    let waiting = world.get("/v1/devices").expect(200).json();
    assert_eq!(waiting["invitations"][0]["folder"], "mail");
    assert_eq!(waiting["asking"], world.device);
    let code = invited["join_token"].as_str().unwrap();
    let joined = join(code, &own).expect(201).json();
    assert_eq!(
        (&joined["name"], &joined["folder"]),
        (&"kitchen".into(), &"mail".into())
    );
    // The answer was lost: the same device asks again.
    assert_eq!(join(code, &own).expect(201).json(), joined);
    join(code, &format!("bbd_{}", "E".repeat(43))).problem(403, "join_token_used");
    join(code, "bbd_short").problem(400, "invalid_parameter");
    let id = joined["device_id"].as_u64().unwrap();
    let target = format!("/v1/devices/{id}");
    let renamed = world.send("PUT", &target, br#"{"name":"cellar"}"#).expect(200).json();
    assert_eq!(
        (&renamed["name"], &renamed["manages"]),
        (&"cellar".into(), &false.into())
    );
    world
        .send("PUT", &target, br#"{"name":""}"#)
        .problem(400, "invalid_parameter");
    world
        .send("PUT", "/v1/devices/77", br#"{"name":"x"}"#)
        .problem(404, "device_not_found");
    world.send_as(&own, "GET", "/v1/folders/mail", b"").expect(200);
    world.send("DELETE", &target, b"").expect(204);
    world
        .send_as(&own, "GET", "/v1/folders/mail", b"")
        .problem(401, "device_revoked");
    join(code, &own).problem(401, "device_revoked");
    world
        .send("DELETE", "/v1/devices/77", b"")
        .problem(404, "device_not_found");

    let invited = world.post("/v1/invitations", &asked).expect(201).json();
    let target = format!("/v1/invitations/{}", invited["id"]);
    world.send("DELETE", &target, b"").expect(204);
    join(
        invited["join_token"].as_str().unwrap(),
        &format!("bbd_{}", "I".repeat(43)),
    )
    .problem(403, "join_token_withdrawn");
    let expired = json!({"folder": "mail", "valid_ns": 0});
    let expired = world.post("/v1/invitations", &expired).expect(201).json();
    join(
        expired["join_token"].as_str().unwrap(),
        &format!("bbd_{}", "I".repeat(43)),
    )
    .problem(403, "join_token_expired");
    join("bbj_AAAAAAAAAAAAAAAAAAAAAA", &own).problem(403, "join_token_invalid");
    let missing = json!({"folder": "missing", "read_only": true, "valid_ns": 1});
    world.post("/v1/invitations", &missing).problem(404, "folder_not_found");
}

/// A request whose body stops in the middle, until the server answers.
fn half_sent(world: &World, token: &str) -> std::net::TcpStream {
    let mut stream = connect(world.server.address());
    let target = "/v1/folders/f/batches/7/parts/1";
    stream
        .write_all(head("PUT", target, Some(token), 1_000_000, &[]).as_bytes())
        .unwrap();
    stream
        .write_all(&world.first(7, &noise(1, 300_000))[..200_000])
        .unwrap();
    stream
}

#[test]
fn device_revoked_is_stopped_in_the_middle_of_an_upload() {
    let world = World::new();
    for beside in [false, true] {
        let (id, token) = world.device_of("f", true);
        let stream = half_sent(&world, &token);
        std::thread::sleep(Duration::from_millis(100));
        let started = Instant::now();
        match beside {
            false => _ = world.send("DELETE", &format!("/v1/devices/{id}"), b"").expect(204),
            // Revoked as another process would.
            true => RosterFile::open(world.dir.path()).unwrap().roster().revoke(id).unwrap(),
        }
        read_answer(stream).problem(401, "device_revoked");
        assert!(started.elapsed() < Duration::from_secs(5));
        world
            .send_as(&token, "GET", "/v1/folders/f", b"")
            .problem(401, "device_revoked");
    }
}

#[test]
fn device_revoked_is_stopped_in_the_middle_of_a_download() {
    let world = World::new();
    let content = noise(1, 40 << 20);
    world.commit(1, &world.first(1, &content)).expect(200);
    let (id, token) = world.device_of("f", false);
    let mut stream = connect(world.server.address());
    let target = format!("/v1/folders/f/nodes/{FILE}/content");
    stream
        .write_all(head("GET", &target, Some(&token), 0, &[]).as_bytes())
        .unwrap();
    let mut some = vec![0; 100_000];
    stream.read_exact(&mut some).unwrap();
    world.send("DELETE", &format!("/v1/devices/{id}"), b"").expect(204);
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(
        rest.len() < content.len() / 2,
        "only what was on the way: {}",
        rest.len()
    );
    let _ = stream.shutdown(Shutdown::Both);
}

#[test]
fn device_revoked_has_nothing_applied_that_was_on_its_way() {
    let world = World::new();
    let (id, _) = world.device_of("f", true);
    let mut part = world.store.begin_part("f", id, 3).unwrap();
    part.manifest(byteback_model::Manifest {
        device: id,
        counter: 3,
        base_seq: None,
        replaces: None,
        follows: None,
        root: byteback_model::FileId(1),
        created_ns: 1,
        host: vec![].into(),
        path: vec![].into(),
        snapshot: None,
    })
    .unwrap();
    world.store.roster().revoke(id).unwrap();
    let refused = world.store.commit(part, 0);
    assert!(
        matches!(refused, Err(byteback_store::StoreError::DeviceRevoked(of)) if of == id),
        "{refused:?}"
    );
}
