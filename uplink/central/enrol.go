package central

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/lease"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/uplink"
	"github.com/forgeyard/forgeyard-node/uplink/reckon"
)

// NewTicket keeps the hash of a ticket's secret, with its terms and end.
func (s *Store) NewTicket(id forgeyard.TokenID, hash [32]byte, ttl time.Duration, terms lease.UplinkTerms) (expires forgeyard.Wall, err error) {
	if ttl < minTicketTTL || ttl > maxTicketTTL {
		return 0, forgeyard.Errorf("ticket create", forgeyard.Invalid, "ttl %s is not in [%s, %s]", ttl, minTicketTTL, maxTicketTTL)
	}
	if err := reckon.CheckTerms(terms); err != nil {
		return 0, forgeyard.E("ticket create", forgeyard.Invalid, err)
	}
	now := s.now()
	expires = forgeyard.WallOf(now.Time().Add(ttl))
	err = s.update("ticket create", func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketTickets)
		open, err := sweepTickets(b, now)
		if err != nil {
			return err
		}
		if open >= maxOpenTickets {
			return forgeyard.Errorf("ticket create", forgeyard.Limit, "%d tickets are open, the bound is %d", open, maxOpenTickets).WithHint("wait for some to expire")
		}
		if err := put(b, []byte(id), ticketRow{ID: id, Hash: hash, Created: now, Expires: expires, Terms: terms}); err != nil {
			return err
		}
		return audit(tx, auditRow{At: now, Kind: "ticket", Text: fmt.Sprintf("%s, until %s", id, expires.Time().Format(time.RFC3339))})
	})
	return expires, err
}

// sweepTickets forgets what has expired or was spent long ago, and counts the rest.
func sweepTickets(b *bolt.Bucket, now forgeyard.Wall) (open int, err error) {
	var old [][]byte
	err = b.ForEach(func(k, _ []byte) error {
		t, _, err := get[ticketRow](b, k)
		switch {
		case err != nil:
			return err
		case t.UsedBy == "" && now < t.Expires:
			open++
		case t.UsedBy == "" || now-t.UsedAt > forgeyard.Wall(spentTickets.Milliseconds()):
			old = append(old, bytes.Clone(k))
		}
		return nil
	})
	for _, k := range old {
		err = errors.Join(err, b.Delete(k))
	}
	return open, err
}

// OpenTickets says whether any ticket can still be redeemed: only then does a
// stranger get a hearing.
func (s *Store) OpenTickets() (open bool, err error) {
	now := s.now()
	err = s.view("ticket", func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketTickets)
		return b.ForEach(func(k, _ []byte) error {
			t, _, err := get[ticketRow](b, k)
			open = open || t.UsedBy == "" && now < t.Expires
			return err
		})
	})
	return open, err
}

// enrolment is a request whose proof was checked already.
type enrolment struct {
	site   forgeyard.SiteID
	name   string
	public ed25519.PublicKey
	ticket forgeyard.TokenID
	secret []byte
	first  uint64
	cursor uint64
}

// Enrol redeems a ticket for a site. The same site with the same ticket gets the
// same answer again; any other use of a spent ticket is Denied.
func (s *Store) Enrol(e enrolment) (row Site, err error) {
	err = s.update("enrol", func(tx *bolt.Tx) error {
		t, again, err := s.redeem(tx, e)
		if err != nil {
			return err
		}
		old, known, err := get[Site](tx.Bucket(bucketSites), []byte(e.site))
		switch {
		case err != nil:
			return err
		case known && !bytes.Equal(old.PublicKey, e.public):
			return forgeyard.Errorf("enrol", forgeyard.Denied, "site %s is enrolled with another key", e.site)
		case again && known:
			row = old
			return nil
		case !known && tx.Bucket(bucketSites).Stats().KeyN >= maxSites:
			return forgeyard.Errorf("enrol", forgeyard.Limit, "%d sites are enrolled, which is the bound", maxSites)
		case !known:
			old = Site{ID: e.site, PublicKey: e.public, Enrolled: s.now()}
		}
		row = old
		row.Name, row.Terms, row.Ticket = e.name, t.Terms, t.ID
		if err := s.follow(tx, &row, e); err != nil {
			return err
		}
		if err := s.putSite(tx, row); err != nil {
			return err
		}
		return audit(tx, auditRow{At: s.now(), Kind: "enrol", Site: e.site, Text: fmt.Sprintf("%s with ticket %s; records go on at %d, delegations at %d", e.name, t.ID, row.Records+1, row.Delegated+1)})
	})
	return row, err
}

func (s *Store) redeem(tx *bolt.Tx, e enrolment) (t ticketRow, again bool, err error) {
	b := tx.Bucket(bucketTickets)
	t, ok, err := get[ticketRow](b, []byte(e.ticket))
	if err != nil {
		return t, false, err
	}
	switch now := s.now(); {
	case !ok || !uplink.SecretMatches(e.secret, t.Hash):
		return t, false, forgeyard.Errorf("enrol", forgeyard.Denied, "the ticket is not one of this daemon").WithHint("forgeyard-central ticket create")
	case t.UsedBy == e.site:
		return t, true, nil
	case t.UsedBy != "":
		return t, false, forgeyard.Errorf("enrol", forgeyard.Denied, "ticket %s is spent: it enrols one site", t.ID).WithHint("forgeyard-central ticket create")
	case now >= t.Expires:
		return t, false, forgeyard.Errorf("enrol", forgeyard.Denied, "ticket %s expired at %s, it is %s here", t.ID, t.Expires.Time().Format(time.RFC3339), now.Time().Format(time.RFC3339)).WithHint("forgeyard-central ticket create")
	default:
		t.UsedBy, t.UsedAt = e.site, now
	}
	return t, false, put(b, []byte(t.ID), t)
}

// follow goes on with the site's own numbers: it may have reported to another
// daemon meanwhile. What it was given here and never took in is given again under numbers
// that it will look at.
func (s *Store) follow(tx *bolt.Tx, row *Site, e enrolment) error {
	if e.first > 0 && e.first-1 > row.Records {
		row.Records = e.first - 1
		row.Pruned = max(row.Pruned, row.Records)
	}
	if e.cursor <= row.Delegated {
		return nil
	}
	b, err := ofSite(tx, bucketDelegations, row.ID)
	if err != nil {
		return err
	}
	var again []site.Delegation
	for n := row.Cursor + 1; n <= row.Delegated; n++ {
		d, ok, err := get[site.Delegation](b, seqKey(n))
		if err != nil {
			return err
		}
		if ok {
			again = append(again, d)
		}
	}
	row.Delegated, row.Cursor = e.cursor, e.cursor
	for _, d := range again {
		if *row, err = appendDelegation(tx, *row, &d); err != nil {
			return err
		}
		j, err := jobRow(tx, d.Grant.ID)
		if err != nil {
			return err
		}
		if d.Cancel {
			j.CancelSeq = d.Seq
		} else {
			j.Seq = d.Seq
		}
		if err := putJob(tx, j); err != nil {
			return err
		}
	}
	return nil
}
