// Package central is the reference central daemon: it delegates jobs to sites, and
// decides what becomes of each record that a site sends back.
//
//	ticket ──enrol──▶ site          delegated ──▶ accepted ──▶ done | failed | cancelled
//	(once, expires)                      └──────────────────────▲      (outcome accepted once)
//
// What it decides about a record stands in rules.go and is pure; the store makes
// it durable before anybody is told (E01).
//
// Invariants:
//   - a site's records are taken in their order, without a gap, each once; the same
//     number again is DuplicateAccepted and changes nothing;
//   - a job has one outcome or none; one under a lower fence is StaleRejected;
//   - delegation numbers of a site have no gap and are never reused;
//   - a record is acknowledged only when it is on disk;
//   - a ticket enrols one site, before it expires; only the hash of its secret is kept.
//
// What it does not do: it holds no lease and counts no deadline of a site. A daemon
// that comes back after a long outage therefore finds every site's authority as the
// site itself has counted it, gives full terms at the first contact, and takes
// nothing away by itself (E22): only a person cancels or delegates. It never dials a
// site but to fetch results that the site has named.
//
// Goroutines, started by Daemon.Run in this order and ended in the reverse: the
// enrolment server, the delegation server, the control server, the fetcher of
// objects, the collector.
package central
