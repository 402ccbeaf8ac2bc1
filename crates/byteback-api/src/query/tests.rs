use super::*;
use proptest::prelude::*;

#[test]
fn unknown_repeated_and_malformed_parameters_are_errors() {
    assert!(matches!(Query::parse(Some("a=1&a=2")), Err(QueryError::Repeated(_))));
    let mut query = Query::parse(Some("at=x&b=1")).unwrap();
    assert!(matches!(query.take::<u64>("at"), Err(QueryError::BadValue { .. })));
    assert_eq!(query.take::<u64>("missing").unwrap(), None);
    assert_eq!(query.finish(), Err(QueryError::UnknownParameter("b".to_owned())));
}

proptest! {
    #[test]
    fn any_bytes_survive(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let text = format!("at=7&path={}", encode(&bytes));
        prop_assert!(text.is_ascii());
        let mut query = Query::parse(Some(&text)).unwrap();
        prop_assert_eq!(query.take_bytes("path"), Some(bytes));
        prop_assert_eq!(query.take::<u64>("at").unwrap(), Some(7));
        query.finish().unwrap();
    }
}
