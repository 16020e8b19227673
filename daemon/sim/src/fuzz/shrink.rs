//! Shortens a failing run.

/// Maximum number of shortened runs that are tried.
const TRIES: u32 = 3_000;

/// Removes genes while the run still fails: large groups first, then smaller ones.
pub(super) fn shrink(mut genes: Vec<u64>, fails: impl Fn(&[u64]) -> bool) -> Vec<u64> {
    let mut tries = 0;
    let mut piece = genes.len().div_ceil(2);
    while piece > 0 {
        let mut at = 0;
        let mut dropped = false;
        while at < genes.len() && tries < TRIES {
            let end = (at + piece).min(genes.len());
            let mut fewer = genes.clone();
            fewer.drain(at..end);
            tries += 1;
            if fails(&fewer) {
                genes = fewer;
                dropped = true;
            } else {
                at = end;
            }
        }
        if !dropped || tries >= TRIES {
            piece /= 2;
        }
    }
    genes
}

#[cfg(test)]
mod tests {
    use super::shrink;

    #[test]
    fn irrelevant_genes_are_dropped() {
        let genes: Vec<u64> = (0..100).collect();
        let fails = |genes: &[u64]| genes.contains(&17) && genes.contains(&63);
        assert_eq!(shrink(genes, fails), [17, 63]);
    }
}
