use super::*;

#[test]
fn a_made_certificate_can_be_used_and_is_known_by_its_sha_256() {
    let names = ["localhost", "127.0.0.1", "::1", "box.example.org"].map(str::to_owned);
    let pem = Identity::make(&names).unwrap();
    let identity = Identity::from_pem(pem.as_bytes()).unwrap();
    let again = Identity::from_pem(pem.as_bytes()).unwrap();
    assert_eq!(identity.fingerprint(), again.fingerprint());
    let other = Identity::from_pem(Identity::make(&names).unwrap().as_bytes()).unwrap();
    assert_ne!(identity.fingerprint(), other.fingerprint());
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    assert_eq!(identity.fingerprint().0, <[u8; 32]>::from(Sha256::digest(&der)));
}

#[test]
fn tls_files_missing_broken_or_mismatched_are_reported() {
    let make = || Identity::make(&["localhost".to_owned()]).unwrap();
    let pem = make();
    let at = pem.find("-----BEGIN CERTIFICATE").unwrap();
    let (key, certificate) = pem.split_at(at);
    let refused = |pem: &str| Identity::from_pem(pem.as_bytes()).unwrap_err();
    assert!(matches!(refused(certificate), IdentityError::Missing("key")));
    assert!(matches!(refused(key), IdentityError::Missing("certificate")));
    assert!(matches!(refused(""), IdentityError::Missing("certificate")));
    let other = make();
    let foreign = format!(
        "{}{certificate}",
        &other[..other.find("-----BEGIN CERTIFICATE").unwrap()]
    );
    assert!(matches!(refused(&foreign), IdentityError::Unusable(_)));
    let broken = pem.replace("MII", "!!!");
    assert!(matches!(
        refused(&broken),
        IdentityError::Pem(_) | IdentityError::Missing(_)
    ));
    assert!(!format!("{:?}", Identity::from_pem(pem.as_bytes())).contains("PRIVATE"));
}
