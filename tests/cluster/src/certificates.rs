//! The cluster's authority and what it signs, all on an elliptic curve: an RSA key alone takes a second to find.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

/// Who a certificate is about, as Kubernetes reads it.
pub struct Identity<'a> {
    pub user: &'a str,
    pub group: Option<&'a str>,
    /// Names and addresses, for those who serve.
    pub hosts: &'a [String],
}

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    dir: PathBuf,
}

impl Authority {
    /// Writes `ca.crt` into `dir`, where everything that it signs goes too.
    pub fn new(dir: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(dir).context("make the folder of the certificates")?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "millrace-tests");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        write(dir, "ca.crt", &params.self_signed(&key)?.pem())?;
        Ok(Self { issuer: Issuer::new(params, key), dir: dir.to_owned() })
    }

    /// Writes `<file>.crt` and `<file>.key`.
    pub fn sign(&self, file: &str, identity: &Identity<'_>) -> anyhow::Result<()> {
        let mut params = CertificateParams::new(identity.hosts)?;
        params.distinguished_name.push(DnType::CommonName, identity.user);
        if let Some(group) = identity.group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        write(&self.dir, &format!("{file}.crt"), &params.signed_by(&key, &self.issuer)?.pem())?;
        write(&self.dir, &format!("{file}.key"), &key.serialize_pem())
    }
}

/// Writes `service-accounts.key` and `.pub`, by which pods' tokens are signed and checked.
pub fn service_accounts(dir: &Path) -> anyhow::Result<()> {
    let key = KeyPair::generate()?;
    write(dir, "service-accounts.key", &key.serialize_pem())?;
    write(dir, "service-accounts.pub", &key.public_key_pem())
}

fn write(dir: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    fs::write(dir.join(name), text).with_context(|| format!("write {name}"))
}
