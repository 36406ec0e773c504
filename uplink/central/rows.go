package central

import (
	"crypto/ed25519"
	"encoding/binary"

	bolt "go.etcd.io/bbolt"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/uplink/reckon"
)

// The file, all values deterministic CBOR:
//
//	meta         "format" → 1
//	sites        site id → Site
//	tickets      ticket id → ticketRow
//	jobs         grant id → Job
//	open         site id ‖ 0 ‖ grant id → empty         jobs without an outcome
//	pending      grant id → empty                       outcomes whose objects are not all here
//	delegations  site id → { number, 8 B BE → site.Delegation }
//	records      site id → { number, 8 B BE → recordRow }
//	audit        number, 8 B BE → auditRow
const storeFormat = 1

var (
	bucketMeta        = []byte("meta")
	bucketSites       = []byte("sites")
	bucketTickets     = []byte("tickets")
	bucketJobs        = []byte("jobs")
	bucketOpen        = []byte("open")
	bucketPending     = []byte("pending")
	bucketDelegations = []byte("delegations")
	bucketRecords     = []byte("records")
	bucketAudit       = []byte("audit")
	allBuckets        = [][]byte{bucketMeta, bucketSites, bucketTickets, bucketJobs, bucketOpen, bucketPending, bucketDelegations, bucketRecords, bucketAudit}
	keyFormat         = []byte("format")
)

// Site is one enrolled site.
type Site struct {
	ID          forgeyard.SiteID  `cbor:"1,keyasint"`
	Name        string            `cbor:"2,keyasint"`
	PublicKey   ed25519.PublicKey `cbor:"3,keyasint"`
	Terms       lease.UplinkTerms `cbor:"4,keyasint"`
	Enrolled    forgeyard.Wall    `cbor:"5,keyasint"`
	Ticket      forgeyard.TokenID `cbor:"6,keyasint"`
	Records     uint64            `cbor:"7,keyasint"` // number of the last record taken
	Delegated   uint64            `cbor:"8,keyasint"` // number of the last delegation written
	Cursor      uint64            `cbor:"9,keyasint"` // number of the last one that the site has taken in
	Incarnation uint64            `cbor:"10,keyasint"`
	Contact     Contact           `cbor:"11,keyasint"`
	Pruned      uint64            `cbor:"12,keyasint,omitempty"` // records up to this one are no longer kept
}

// Contact is what a site said of itself when it last spoke. For people, except
// Holders, which says where to fetch.
type Contact struct {
	At           forgeyard.Wall `cbor:"1,keyasint,omitempty"`
	Peer         string         `cbor:"2,keyasint,omitempty"`
	Holders      []string       `cbor:"3,keyasint,omitempty"`
	Connectivity []byte         `cbor:"4,keyasint,omitempty"` // forgeyard.v1.Connectivity
	Still        []reckon.Still `cbor:"5,keyasint,omitempty"` // delegated jobs that stand still there
}

type ticketRow struct {
	ID      forgeyard.TokenID `cbor:"1,keyasint"`
	Hash    [32]byte          `cbor:"2,keyasint"`
	Created forgeyard.Wall    `cbor:"3,keyasint"`
	Expires forgeyard.Wall    `cbor:"4,keyasint"`
	Terms   lease.UplinkTerms `cbor:"5,keyasint"`
	UsedBy  forgeyard.SiteID  `cbor:"6,keyasint,omitempty"`
	UsedAt  forgeyard.Wall    `cbor:"7,keyasint,omitempty"`
}

// recordRow is a record as it came, and its verdict.
type recordRow struct {
	Raw     []byte         `cbor:"1,keyasint"`
	Verdict site.Verdict   `cbor:"2,keyasint"`
	Reason  string         `cbor:"3,keyasint,omitempty"`
	At      forgeyard.Wall `cbor:"4,keyasint"`
}

type auditRow struct {
	At    forgeyard.Wall    `cbor:"1,keyasint"`
	Kind  string            `cbor:"2,keyasint"`
	Site  forgeyard.SiteID  `cbor:"3,keyasint,omitempty"`
	Grant forgeyard.GrantID `cbor:"4,keyasint,omitempty"`
	Text  string            `cbor:"5,keyasint"`
}

func seqKey(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func openKey(s forgeyard.SiteID, g forgeyard.GrantID) []byte {
	return append(append([]byte(s), 0), g...)
}

// get reads one row. A row that does not decode is corruption of our own file.
func get[T any](b *bolt.Bucket, key []byte) (v T, ok bool, err error) {
	raw := b.Get(key)
	if raw == nil {
		return v, false, nil
	}
	if err := cborx.Unmarshal(raw, &v); err != nil {
		return v, false, forgeyard.E("central store", forgeyard.Corrupt, err)
	}
	return v, true, nil
}

func put[T any](b *bolt.Bucket, key []byte, v T) error { return b.Put(key, cborx.Marshal(v)) }

// ofSite gives a site's own bucket within one of the buckets of numbered rows; nil
// when it has none yet and the transaction only reads.
func ofSite(tx *bolt.Tx, bucket []byte, s forgeyard.SiteID) (*bolt.Bucket, error) {
	parent := tx.Bucket(bucket)
	if b := parent.Bucket([]byte(s)); b != nil || !tx.Writable() {
		return b, nil
	}
	return parent.CreateBucket([]byte(s))
}

// audit writes one entry in the transaction of what it tells about.
func audit(tx *bolt.Tx, a auditRow) error {
	b := tx.Bucket(bucketAudit)
	n, err := b.NextSequence()
	if err != nil {
		return err
	}
	a.Text = forgeyard.Clip(a.Text, maxAuditText)
	if err := put(b, seqKey(n), a); err != nil {
		return err
	}
	if n > keepAudit {
		return b.Delete(seqKey(n - keepAudit))
	}
	return nil
}
