//! Certificates for tests, made by the `openssl` command. All files are PEM.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

/// An authority with a folder of its own.
pub struct Authority {
    dir: PathBuf,
}

/// A certificate and its key, as texts.
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new(dir: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir).context("make the folder of an authority")?;
        let authority = Self { dir: dir.to_owned() };
        authority.request("ca", &["-subj", "/CN=authority"])?;
        Ok(authority)
    }

    /// Its own certificate.
    pub fn certificate(&self) -> anyhow::Result<String> {
        self.read("ca.crt")
    }

    /// A certificate that it has signed; `address` is the host that it is good for.
    pub fn sign(&self, name: &str, address: Option<Ipv4Addr>) -> anyhow::Result<Identity> {
        let (subject, host) = (format!("/CN={name}"), address.map(|a| format!("subjectAltName=IP:{a}")));
        let (ca, key) = (self.file("ca.crt"), self.file("ca.key"));
        let mut arguments = vec!["-subj", &subject, "-CA", &ca, "-CAkey", &key];
        if let Some(host) = &host {
            arguments.extend(["-addext", host]);
        }
        self.request(name, &arguments)?;
        Ok(Identity { certificate: self.read(&format!("{name}.crt"))?, key: self.read(&format!("{name}.key"))? })
    }

    fn request(&self, name: &str, more: &[&str]) -> anyhow::Result<()> {
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"]);
        command.args(["-keyout", &self.file(&format!("{name}.key")), "-out", &self.file(&format!("{name}.crt"))]);
        let output = command.args(more).output().context("run openssl: is it installed?")?;
        ensure!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn read(&self, name: &str) -> anyhow::Result<String> {
        std::fs::read_to_string(self.dir.join(name)).context("read what openssl has made")
    }
}
