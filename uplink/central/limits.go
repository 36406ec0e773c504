package central

import "time"

// The bounds of the daemon, each with its reason.
const (
	// maxSites and maxOpenTickets: a person makes each of them.
	maxSites       = 10_000
	maxOpenTickets = 1024
	// maxOpenJobs of one site: what a site's own state takes (site: maxOpenJobs).
	maxOpenJobs = 10_000

	// maxDelegationBytes bounds the delegations of one answer; the rest comes with the next.
	maxDelegationBytes = 1 << 20
	// maxWant bounds the digests that one answer asks for; they are a hint.
	maxWant = 256

	// keepRecords is how many records below the site's own acknowledged one are kept: a
	// repeat of an older one can only come from a site that was put back to an old backup.
	keepRecords = 10_000
	pruneAtOnce = 1024

	// keepAudit is how many audit entries are kept.
	keepAudit    = 100_000
	defaultAudit = 100
	maxAuditList = 10_000
	maxAuditText = 1 << 10

	// maxTicketAddrs is what a ticket carries (uplink); more would not fit a line.
	maxTicketAddrs = 16

	// DefaultTicketTTL is long enough to walk to the site, short enough to be forgotten.
	DefaultTicketTTL = time.Hour
	minTicketTTL     = time.Second
	maxTicketTTL     = 30 * 24 * time.Hour
	// spentTickets are kept so long, so that an enrolment whose answer was lost can be repeated.
	spentTickets = 7 * 24 * time.Hour

	// maxVisitors bounds peers that may enrol at once, and visitorStay how long each
	// may: one call of a few hundred bytes. afterEnrol is what remains for the answer to
	// arrive before the peer must come back as a member of its site.
	maxVisitors   = 16
	visitorStay   = 20 * time.Second
	afterEnrol    = 2 * time.Second
	maxEnrols     = 8
	maxEnrolBytes = 16 << 10

	// maxUpload is the bytes of one message of an upload; maxControl of any other request
	// on the control socket: a spec has at most 256 KiB.
	uploadPiece = 256 << 10
	maxControl  = 1 << 20
	// maxUploadName bounds the name that keeps uploaded objects.
	maxUploadName = 64

	// pullsAtOnce is how many jobs' objects are fetched at once; each uses several links.
	pullsAtOnce = 2
	// pullRetryMin and pullRetryMax bound the wait before another try. It never gives up:
	// the node that has the objects may be off for a week.
	pullRetryMin = time.Second
	pullRetryMax = 5 * time.Minute
	// backAfter: a site that was silent for so long is back, and its objects are tried at once.
	backAfter = 15 * time.Second

	// contactEvery is how often a contact that brought nothing is written down.
	contactEvery = 30 * time.Second
	// collectEvery is how often what nothing keeps is removed from the store.
	collectEvery = 6 * time.Hour
	// stopTimeout bounds the goodbye to callers when the daemon stops.
	stopTimeout = 3 * time.Second
)
