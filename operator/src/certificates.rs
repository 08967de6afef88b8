//! The certificates of the control API: one authority for each Pipeline, which signs what its workers show to the operator
//! and what the operator shows to them. Nobody else trusts it.

use jiff::tz::TimeZone;
use millrace_crds::timestamp::Timestamp;
use millrace_operator_core::decision::Certify;
use millrace_operator_core::names::{Names, WORKER_HOST};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

const AUTHORITY_DAYS: i64 = 365;
const LEAF_DAYS: i64 = 90;

/// PEM texts.
#[derive(Clone)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

/// All that the control API of one Pipeline needs.
#[derive(Clone)]
pub struct Certificates {
    /// Authorities that are trusted: the one that signs, and the one before it.
    pub trusted: String,
    pub authority_key: String,
    /// The operator's.
    pub client: Pair,
    /// The workers'.
    pub server: Pair,
    pub renew_authority_after: Timestamp,
    pub renew_leaves_after: Timestamp,
}

/// What was issued before.
pub struct Former {
    pub trusted: String,
    pub authority_key: String,
    pub renew_authority_after: Timestamp,
}

/// Issues what is asked for. Without a former authority there is only a new one.
pub fn issue(names: &Names, what: Certify, former: Option<Former>, now: Timestamp) -> anyhow::Result<Certificates> {
    let of_authority = authority(names, now)?;
    let kept = former.as_ref().filter(|_| what == Certify::Leaves);
    let (key, trusted, renew_authority_after) = match kept {
        Some(former) => {
            let key = KeyPair::from_pem(&former.authority_key)?;
            (key, former.trusted.clone(), former.renew_authority_after)
        }
        None => {
            let key = KeyPair::generate()?;
            // What the former one signed is shown until everybody has seen the new one.
            let before = former.as_ref().map(|former| first(&former.trusted)).unwrap_or_default();
            let trusted = format!("{}{before}", of_authority.self_signed(&key)?.pem());
            (key, trusted, after_days(now, AUTHORITY_DAYS * 2 / 3))
        }
    };
    let authority_key = key.serialize_pem();
    let issuer = Issuer::new(of_authority, key);
    let workers = [WORKER_HOST.to_owned(), format!("*.{}.{}.svc", names.workers_service(), names.namespace)];
    Ok(Certificates {
        client: leaf(&issuer, "millrace-operator", Vec::new(), ExtendedKeyUsagePurpose::ClientAuth, now)?,
        server: leaf(&issuer, WORKER_HOST, workers.to_vec(), ExtendedKeyUsagePurpose::ServerAuth, now)?,
        trusted,
        authority_key,
        renew_authority_after,
        renew_leaves_after: after_days(now, LEAF_DAYS * 2 / 3),
    })
}

fn authority(names: &Names, now: Timestamp) -> anyhow::Result<CertificateParams> {
    let mut params =
        params(&format!("millrace {}/{}", names.namespace, names.pipeline), Vec::new(), now, AUTHORITY_DAYS)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    Ok(params)
}

fn leaf(
    issuer: &Issuer<'_, KeyPair>,
    name: &str,
    hosts: Vec<String>,
    usage: ExtendedKeyUsagePurpose,
    now: Timestamp,
) -> anyhow::Result<Pair> {
    let mut params = params(name, hosts, now, LEAF_DAYS)?;
    params.extended_key_usages = vec![usage];
    let key = KeyPair::generate()?;
    Ok(Pair { certificate: params.signed_by(&key, issuer)?.pem(), key: key.serialize_pem() })
}

fn params(name: &str, hosts: Vec<String>, now: Timestamp, days: i64) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::new(hosts)?;
    params.distinguished_name.push(DnType::CommonName, name);
    let date = |at: Timestamp| {
        let date = jiff::Timestamp::from_millisecond(at.ms()).unwrap_or_default().to_zoned(TimeZone::UTC).date();
        rcgen::date_time_ymd(i32::from(date.year()), date.month() as u8, date.day() as u8)
    };
    // Clocks of nodes differ.
    params.not_before = date(after_days(now, -1));
    params.not_after = date(after_days(now, days));
    Ok(params)
}

fn after_days(now: Timestamp, days: i64) -> Timestamp {
    Timestamp::from_ms(now.ms() + days * 86_400_000)
}

/// The first certificate of a bundle.
fn first(bundle: &str) -> String {
    const END: &str = "-----END CERTIFICATE-----\n";
    bundle.find(END).map(|at| bundle[..at + END.len()].to_owned()).unwrap_or_default()
}
