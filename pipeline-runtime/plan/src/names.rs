//! Suggestions for names that do not exist.

/// Names further away than this share of their length are no help.
const SIMILARITY_MIN: f64 = 0.5;
/// Candidates that are listed when none is near.
const LISTED_MAX: usize = 10;

/// `did you mean 'x'?`, or the names that there are: the hint for a name that does not exist.
pub fn did_you_mean<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> String {
    let candidates: Vec<&str> = candidates.collect();
    let lower = name.to_lowercase();
    let nearest = candidates
        .iter()
        .map(|c| (strsim::normalized_damerau_levenshtein(&lower, &c.to_lowercase()), *c))
        .filter(|(similarity, _)| *similarity >= SIMILARITY_MIN)
        .max_by(|(a, _), (b, _)| a.total_cmp(b));
    match (nearest, candidates.len()) {
        (Some((_, candidate)), _) => format!("did you mean '{candidate}'?"),
        (None, 0) => String::new(),
        (None, 1..=LISTED_MAX) => format!("there are '{}'", candidates.join("', '")),
        (None, count) => {
            format!("there are '{}' and {} more", candidates[..LISTED_MAX].join("', '"), count - LISTED_MAX)
        }
    }
}
