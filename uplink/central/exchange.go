package central

import (
	"bytes"
	"encoding/binary"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/site"
)

func seqOf(key []byte) uint64 { return binary.BigEndian.Uint64(key) }

// sent is what a site sent with one exchange.
type sent struct {
	site        forgeyard.SiteID
	incarnation uint64
	cursor      uint64
	first       uint64
	records     [][]byte
	contact     Contact
}

// answer is what it gets.
type answer struct {
	site        Site
	verdicts    []verdict
	delegations [][]byte
	last        uint64
	gone        []string
	ended       []Job // outcomes accepted now
}

type verdict struct {
	seq     uint64
	verdict site.Verdict
	reason  string
}

// Exchange takes a site's records and reads what it is to be told. When it
// returns, all that it acknowledges is on disk. Conflict: a gap, which names the number
// that is expected; Stale: the speaker belongs to an incarnation that was given up.
func (s *Store) Exchange(in sent) (answer, error) {
	due := s.heard(in.site, in.contact)
	var out answer
	need := due || len(in.records) > 0
	if !need {
		err := s.view("sync", func(tx *bolt.Tx) (err error) {
			if out.site, err = siteRow(tx, in.site); err == nil {
				need = in.changes(out.site)
				out.delegations, out.last, out.gone, err = delegationsAfter(tx, in.site, in.cursor)
			}
			return err
		})
		if err != nil || !need {
			return out, err
		}
	}
	s.at("before")
	err := s.update("sync", func(tx *bolt.Tx) (err error) {
		out = answer{}
		if out.site, err = siteRow(tx, in.site); err != nil {
			return err
		}
		if err = s.take(tx, in, &out); err != nil {
			return err
		}
		out.delegations, out.last, out.gone, err = delegationsAfter(tx, in.site, in.cursor)
		return err
	})
	return out, err
}

// changes says that the exchange must write, or be refused, even without records.
func (in sent) changes(row Site) bool {
	return in.first != row.Records+1 || in.cursor != row.Cursor || in.incarnation != row.Incarnation
}

func (s *Store) take(tx *bolt.Tx, in sent, out *answer) error {
	row := &out.site
	switch {
	case in.incarnation < row.Incarnation:
		return forgeyard.Errorf("sync", forgeyard.Stale, "this member speaks for incarnation %d of the site, %d is current", in.incarnation, row.Incarnation).
			WithHint("it belongs to a part of the site that was given up; enrol it anew")
	case in.cursor > row.Delegated:
		return forgeyard.Errorf("sync", forgeyard.Conflict, "the site has taken in delegation %d, only %d were ever given here", in.cursor, row.Delegated).
			WithHint("this daemon's data is older than what the site knows; restore a newer copy, or connect the site with a new ticket")
	case in.incarnation > row.Incarnation:
		if err := s.newIncarnation(tx, in, row); err != nil {
			return err
		}
	}
	if in.first == 0 || in.first > row.Records+1 {
		return forgeyard.Errorf("sync", forgeyard.Conflict, "record %d is expected next, these begin with %d", row.Records+1, in.first).
			WithHint("this daemon's data is older than what the site knows; restore a newer copy, or connect the site with a new ticket")
	}
	for i, raw := range in.records {
		v, err := s.record(tx, row, in.first+uint64(i), raw, out)
		if err != nil {
			if i > 0 && forgeyard.KindOf(err) == forgeyard.Invalid {
				break // what was readable is taken; the next exchange begins with this one and says why
			}
			return err
		}
		out.verdicts = append(out.verdicts, v)
		s.at("record")
	}
	if err := s.moveCursor(tx, in, row); err != nil {
		return err
	}
	if err := prune(tx, row, in.first); err != nil {
		return err
	}
	return s.putSite(tx, *row)
}

// record judges one record and writes it down with its verdict.
func (s *Store) record(tx *bolt.Tx, row *Site, seq uint64, raw []byte, out *answer) (verdict, error) {
	var r site.Record
	if err := cborx.Unmarshal(raw, &r); err != nil {
		return verdict{}, forgeyard.Errorf("sync", forgeyard.Invalid, "record %d cannot be read by this version: %w", seq, err).WithHint("upgrade the central daemon; the site keeps the record")
	}
	if r.Seq != seq {
		return verdict{}, forgeyard.Errorf("sync", forgeyard.Invalid, "a record with number %d stands in the place of %d", r.Seq, seq)
	}
	b, err := ofSite(tx, bucketRecords, row.ID)
	if err != nil {
		return verdict{}, err
	}
	if seq <= row.Records {
		return repeated(b, row, seq, raw)
	}
	j, known, err := get[Job](tx.Bucket(bucketJobs), []byte(r.Grant))
	if err != nil {
		return verdict{}, err
	}
	next, v, reason := judge(j, known && j.Site == row.ID, r, s.now())
	if err := put(b, seqKey(seq), recordRow{Raw: raw, Verdict: v, Reason: reason, At: s.now()}); err != nil {
		return verdict{}, err
	}
	row.Records = seq
	if v == site.Accepted {
		if err := putJob(tx, next); err != nil {
			return verdict{}, err
		}
		if next.Status.terminal() {
			out.ended = append(out.ended, next)
		}
	}
	text := fmt.Sprintf("record %d, %s under %s: %s", seq, r.Kind, r.Fence, v)
	if r.Kind == site.RecordOutcome {
		text = fmt.Sprintf("record %d, %s %s under %s: %s", seq, r.Kind, r.Status, r.Fence, v)
	}
	if reason != "" {
		text += " (" + reason + ")"
	}
	return verdict{seq, v, reason}, audit(tx, auditRow{At: s.now(), Kind: "record", Site: row.ID, Grant: forgeyard.GrantID(forgeyard.Clip(string(r.Grant), 64)), Text: text})
}

// repeated answers a record that was taken before: the same bytes get the same
// answer, an accepted one as a duplicate.
func repeated(b *bolt.Bucket, row *Site, seq uint64, raw []byte) (verdict, error) {
	old, ok, err := get[recordRow](b, seqKey(seq))
	switch {
	case err != nil:
		return verdict{}, err
	case !ok:
		return verdict{seq, site.DuplicateAccepted, "it is older than what is kept"}, nil
	case !bytes.Equal(old.Raw, raw):
		return verdict{seq, site.InvalidRejected, fmt.Sprintf("another record was taken under number %d already", seq)}, nil
	case old.Verdict == site.Accepted:
		return verdict{seq, site.DuplicateAccepted, ""}, nil
	}
	return verdict{seq, old.Verdict, old.Reason}, nil
}

// newIncarnation follows a site that an operator recovered by force: its log lost
// its end, so its numbers may begin lower than what was taken. Outcomes stay.
func (s *Store) newIncarnation(tx *bolt.Tx, in sent, row *Site) error {
	text := fmt.Sprintf("incarnation %d follows %d", in.incarnation, row.Incarnation)
	if row.Incarnation != 0 && in.first >= 1 && in.first <= row.Records {
		b, err := ofSite(tx, bucketRecords, row.ID)
		if err != nil {
			return err
		}
		for n := in.first; n <= row.Records; n++ {
			if err := b.Delete(seqKey(n)); err != nil {
				return err
			}
		}
		text += fmt.Sprintf("; records go on at %d, %d were taken from the old one", in.first, row.Records)
		row.Records = in.first - 1
	}
	row.Incarnation = in.incarnation
	return audit(tx, auditRow{At: s.now(), Kind: "enrol", Site: row.ID, Text: text})
}

// moveCursor notes what the site has taken in; cancellations among it are no longer pending.
func (s *Store) moveCursor(tx *bolt.Tx, in sent, row *Site) error {
	b, err := ofSite(tx, bucketDelegations, row.ID)
	if err != nil {
		return err
	}
	for n := row.Cursor + 1; n <= in.cursor; n++ {
		d, ok, err := get[site.Delegation](b, seqKey(n))
		if err != nil {
			return err
		}
		if !ok || !d.Cancel {
			continue
		}
		j, err := jobRow(tx, d.Grant.ID)
		if err != nil {
			return err
		}
		j.CancelSeen = s.now()
		if err := putJob(tx, j); err != nil {
			return err
		}
		if err := audit(tx, auditRow{At: s.now(), Kind: "cancel", Site: row.ID, Grant: j.Grant, Text: "the site has taken it in"}); err != nil {
			return err
		}
	}
	row.Cursor = in.cursor
	return nil
}

// prune forgets records far below what the site itself knows to be acknowledged.
func prune(tx *bolt.Tx, row *Site, first uint64) error {
	if first <= keepRecords+1 || row.Pruned+pruneAtOnce > first-keepRecords-1 {
		return nil
	}
	b, err := ofSite(tx, bucketRecords, row.ID)
	if err != nil {
		return err
	}
	for n := row.Pruned + 1; n <= row.Pruned+pruneAtOnce; n++ {
		if err := b.Delete(seqKey(n)); err != nil {
			return err
		}
	}
	row.Pruned += pruneAtOnce
	return nil
}
