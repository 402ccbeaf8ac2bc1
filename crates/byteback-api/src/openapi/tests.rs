use super::DOCUMENT;
use crate::problem::Code;
use crate::routes::{Access, Route};
use serde_json::Value;
use std::collections::BTreeSet;

fn document() -> Value {
    serde_json::from_str(DOCUMENT).unwrap()
}

#[test]
fn the_document_and_the_table_list_the_same_calls() {
    let mut documented = BTreeSet::new();
    let document = document();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys().filter(|key| *key != "parameters") {
            documented.insert((path.clone(), method.to_uppercase()));
        }
    }
    let table: BTreeSet<_> = Route::ALL
        .iter()
        .map(|route| (route.path().to_owned(), route.method().as_str().to_owned()))
        .collect();
    assert_eq!(table.len(), Route::ALL.len(), "a call is listed twice");
    assert_eq!(documented, table);
}

#[test]
fn every_call_of_a_folder_asks_whether_the_device_was_given_it() {
    for route in Route::ALL {
        let of_a_folder = route.path().contains("{folder}");
        let asks = matches!(route.access(), Access::Reads | Access::Writes);
        assert_eq!(of_a_folder, asks, "{route:?}");
        let manages = route.path().contains("{device}") || route.path().contains("{invitation}");
        assert!(!manages || route.access() == Access::Manages, "{route:?}");
    }
}

#[test]
fn open_calls_are_marked_and_every_path_parameter_is_described() {
    let document = document();
    for route in Route::ALL {
        let item = &document["paths"][route.path()];
        let operation = &item[route.method().as_str().to_lowercase()];
        let open = operation["security"].as_array().is_some_and(Vec::is_empty);
        assert_eq!(open, route.access() == Access::Open, "{route:?}");
        assert!(operation["summary"].is_string(), "{route:?} has no summary");
        assert!(operation["responses"].is_object(), "{route:?} has no responses");
        let described: BTreeSet<String> = [&item["parameters"], &operation["parameters"]]
            .into_iter()
            .filter_map(Value::as_array)
            .flatten()
            .map(|parameter| {
                let reference = parameter["$ref"].as_str().unwrap_or_default();
                let inline = parameter["name"].as_str().unwrap_or_default();
                reference
                    .rsplit('/')
                    .next()
                    .filter(|name| !name.is_empty())
                    .unwrap_or(inline)
                    .to_owned()
            })
            .collect();
        for part in route.path().split('/').filter(|part| part.starts_with('{')) {
            let name = part.trim_matches(['{', '}']);
            assert!(described.contains(name), "{route:?}: parameter {name} is not described");
        }
    }
}

#[test]
fn every_reference_resolves_and_every_code_is_listed() {
    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    if key == "$ref" {
                        found.push(value.as_str().unwrap().to_owned());
                    }
                    references(value, found);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }
    let document = document();
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 20);
    for reference in found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
    let codes: Vec<&str> = document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"]
        .as_array()
        .unwrap()
        .iter()
        .map(|code| code.as_str().unwrap())
        .collect();
    assert_eq!(codes, Code::ALL.map(Code::name));
}
