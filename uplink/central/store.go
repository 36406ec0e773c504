package central

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/uplink"
	"github.com/forgeyard/forgeyard-node/uplink/reckon"
)

// Store is the daemon's memory: one bbolt file, synced with each change. What a
// method has returned without error survives a kill at any moment after. Safe for
// concurrent use.
type Store struct {
	db  *bolt.DB
	clk clock.Clock
	// step is called between the steps of a change, so that a test can stop there as a
	// kill would. Nil outside tests.
	step func(string)

	mu       sync.Mutex // guards contacts
	contacts map[forgeyard.SiteID]contactNow
}

// contactNow is the newest contact and when one was last written down.
type contactNow struct {
	Contact
	written forgeyard.Wall
}

// OpenStore opens or makes the file. Conflict: another process has it open. Corrupt:
// it is of another format, or damaged.
func OpenStore(path string, clk clock.Clock) (*Store, error) {
	return openStore(path, clk, false)
}

func openStore(path string, clk clock.Clock, noSync bool) (*Store, error) {
	const op = "central store"
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second, NoSync: noSync, NoFreelistSync: true, FreelistType: bolt.FreelistMapType})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, forgeyard.Errorf(op, forgeyard.Conflict, "%s is open in another process", path)
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum), errors.Is(err, bolterrors.ErrVersionMismatch):
		return nil, forgeyard.E(op, forgeyard.Corrupt, fmt.Errorf("%s: %w", path, err)).WithHint("restore it from a backup; sites keep what was not acknowledged")
	case err != nil:
		return nil, forgeyard.E(op, forgeyard.Other, err)
	}
	s := &Store{db: db, clk: clk, contacts: map[forgeyard.SiteID]contactNow{}}
	if err := s.db.Update(prepare); err != nil {
		_ = db.Close() // the first error tells more
		return nil, forgeyard.E(op, forgeyard.Other, err)
	}
	return s, nil
}

func prepare(tx *bolt.Tx) error {
	for _, name := range allBuckets {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return err
		}
	}
	meta := tx.Bucket(bucketMeta)
	v, ok, err := get[int](meta, keyFormat)
	if err != nil {
		return err
	}
	if ok && v != storeFormat {
		return forgeyard.Errorf("", forgeyard.Corrupt, "format %d is not known, this version reads %d", v, storeFormat).WithHint("run the version that wrote it")
	}
	return put(meta, keyFormat, storeFormat)
}

// Close writes the last contacts down and closes the file.
func (s *Store) Close() error {
	s.mu.Lock()
	ids := make([]forgeyard.SiteID, 0, len(s.contacts))
	for id := range s.contacts {
		ids = append(ids, id)
	}
	s.mu.Unlock()
	err := s.update("contact", func(tx *bolt.Tx) error {
		for _, id := range ids {
			row, ok, err := get[Site](tx.Bucket(bucketSites), []byte(id))
			if err != nil || !ok {
				return err
			}
			if err := s.putSite(tx, row); err != nil {
				return err
			}
		}
		return nil
	})
	return errors.Join(err, s.db.Close())
}

func (s *Store) update(op string, f func(*bolt.Tx) error) error {
	err := s.db.Update(func(tx *bolt.Tx) error {
		if err := f(tx); err != nil {
			return err
		}
		s.at("before commit")
		return nil
	})
	s.at("after commit")
	return wrap(op, err)
}

func (s *Store) view(op string, f func(*bolt.Tx) error) error { return wrap(op, s.db.View(f)) }

func (s *Store) at(step string) {
	if s.step != nil {
		s.step(step)
	}
}

func wrap(op string, err error) error {
	var e *forgeyard.Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	if errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
		return forgeyard.Errorf(op, forgeyard.Unavailable, "the daemon is stopping")
	}
	return forgeyard.E(op, kindOfDisk(err), err)
}

func (s *Store) now() forgeyard.Wall { return forgeyard.WallOf(s.clk.Wall()) }

// heard notes what a site said of itself. It is written down now and then, and with
// whatever else is written for the site.
func (s *Store) heard(id forgeyard.SiteID, c Contact) (due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.contacts[id]
	s.contacts[id] = contactNow{c, old.written}
	return old.written == 0 || !slices.Equal(old.Holders, c.Holders) || c.At-old.written >= forgeyard.Wall(contactEvery.Milliseconds()) || c.At < old.written
}

// putSite writes a site with its newest contact.
func (s *Store) putSite(tx *bolt.Tx, row Site) error {
	s.mu.Lock()
	if c, ok := s.contacts[row.ID]; ok {
		row.Contact = c.Contact
		c.written = c.At
		s.contacts[row.ID] = c
	}
	s.mu.Unlock()
	return put(tx.Bucket(bucketSites), []byte(row.ID), row)
}

func (s *Store) withContact(row Site) Site {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.contacts[row.ID]; ok {
		row.Contact = c.Contact
	}
	return row
}

// site reads the row of an enrolled site.
func siteRow(tx *bolt.Tx, id forgeyard.SiteID) (Site, error) {
	row, ok, err := get[Site](tx.Bucket(bucketSites), []byte(id))
	if err == nil && !ok {
		err = forgeyard.Errorf("central", forgeyard.NotFound, "site %s is not enrolled here", forgeyard.Clip(string(id), 64)).WithHint("forgeyard-central site list")
	}
	return row, err
}

// Sites lists the enrolled sites by id.
func (s *Store) Sites() (all []Site, err error) {
	err = s.view("site list", func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketSites)
		return b.ForEach(func(k, _ []byte) error {
			row, _, err := get[Site](b, k)
			all = append(all, s.withContact(row))
			return err
		})
	})
	return all, err
}

// FindSite takes an id or a name. NotFound: no such site; Conflict: several.
func (s *Store) FindSite(name string) (Site, error) {
	all, err := s.Sites()
	if err != nil {
		return Site{}, err
	}
	var found []Site
	for _, row := range all {
		if string(row.ID) == name {
			return row, nil
		}
		if row.Name == name {
			found = append(found, row)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return Site{}, forgeyard.Errorf("site", forgeyard.NotFound, "%q is neither the id nor the name of an enrolled site", forgeyard.Clip(name, 64)).WithHint("forgeyard-central site list")
	}
	return Site{}, forgeyard.Errorf("site", forgeyard.Conflict, "%d sites have the name %q", len(found), name).WithHint("give the id: forgeyard-central site list")
}

// Counts says how many jobs of a site are open, and how many outcomes wait for
// their objects.
func (s *Store) Counts(id forgeyard.SiteID) (open, pending int64, err error) {
	err = s.view("site show", func(tx *bolt.Tx) error {
		open = int64(len(keysWith(tx.Bucket(bucketOpen), openKey(id, ""))))
		return tx.Bucket(bucketPending).ForEach(func(k, _ []byte) error {
			j, ok, err := get[Job](tx.Bucket(bucketJobs), k)
			if ok && j.Site == id {
				pending++
			}
			return err
		})
	})
	return open, pending, err
}

// keysWith lists the rest of each key that begins with the prefix.
func keysWith(b *bolt.Bucket, prefix []byte) (rest []string) {
	c := b.Cursor()
	for k, _ := c.Seek(prefix); k != nil && len(k) >= len(prefix) && string(k[:len(prefix)]) == string(prefix); k, _ = c.Next() {
		rest = append(rest, string(k[len(prefix):]))
	}
	return rest
}

// Job reads one job.
func (s *Store) Job(g forgeyard.GrantID) (j Job, err error) {
	err = s.view("job", func(tx *bolt.Tx) error {
		j, err = jobRow(tx, g)
		return err
	})
	return j, err
}

func jobRow(tx *bolt.Tx, g forgeyard.GrantID) (Job, error) {
	j, ok, err := get[Job](tx.Bucket(bucketJobs), []byte(g))
	if err == nil && !ok {
		err = forgeyard.Errorf("job", forgeyard.NotFound, "%q is no job of this daemon", forgeyard.Clip(string(g), 64)).WithHint("forgeyard-central job list")
	}
	return j, err
}

// Jobs lists the jobs, all or one site's, oldest first: grants are ULIDs.
func (s *Store) Jobs(of forgeyard.SiteID) (all []Job, err error) {
	err = s.view("job list", func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketJobs)
		return b.ForEach(func(k, _ []byte) error {
			j, _, err := get[Job](b, k)
			if of == "" || j.Site == of {
				all = append(all, j)
			}
			return err
		})
	})
	return all, err
}

// putJob writes a job and keeps the two lists that are derived from it.
func putJob(tx *bolt.Tx, j Job) error {
	if err := put(tx.Bucket(bucketJobs), []byte(j.Grant), j); err != nil {
		return err
	}
	if err := listed(tx.Bucket(bucketOpen), openKey(j.Site, j.Grant), !j.Status.terminal()); err != nil {
		return err
	}
	return listed(tx.Bucket(bucketPending), []byte(j.Grant), j.Status.terminal() && !j.Objects)
}

func listed(b *bolt.Bucket, key []byte, yes bool) error {
	if yes {
		return b.Put(key, []byte{})
	}
	return b.Delete(key)
}

// Delegate writes a job and the record that gives it to the site. The delegation's
// number is set here.
func (s *Store) Delegate(to forgeyard.SiteID, j Job, d site.Delegation) (out Job, err error) {
	err = s.update("delegate", func(tx *bolt.Tx) error {
		row, err := siteRow(tx, to)
		if err != nil {
			return err
		}
		if n := len(keysWith(tx.Bucket(bucketOpen), openKey(to, ""))); n >= maxOpenJobs {
			return forgeyard.Errorf("delegate", forgeyard.Limit, "%d jobs of the site have no outcome, the bound is %d", n, maxOpenJobs).WithHint("wait for some to end, or cancel them")
		}
		if row, err = appendDelegation(tx, row, &d); err != nil {
			return err
		}
		j.Site, j.Seq, j.Status, j.Delegated = to, d.Seq, Delegated, s.now()
		out = j
		if err := errors.Join(putJob(tx, j), s.putSite(tx, row)); err != nil {
			return err
		}
		return audit(tx, auditRow{At: j.Delegated, Kind: "delegate", Site: to, Grant: j.Grant, Text: fmt.Sprintf("record %d, term %d, %s", j.Seq, j.Term, j.Title)})
	})
	return out, err
}

func appendDelegation(tx *bolt.Tx, row Site, d *site.Delegation) (Site, error) {
	b, err := ofSite(tx, bucketDelegations, row.ID)
	if err != nil {
		return row, err
	}
	row.Delegated++
	d.Seq = row.Delegated
	return row, put(b, seqKey(d.Seq), *d)
}

// Cancel asks for a job to end, once. The request is a record to the site; it is
// pending until the site has taken it in, and changes no timer (E15).
func (s *Store) Cancel(g forgeyard.GrantID) (out Job, changed bool, err error) {
	err = s.update("cancel", func(tx *bolt.Tx) error {
		j, err := jobRow(tx, g)
		if err != nil {
			return err
		}
		if out = j; j.Status.terminal() || j.CancelAt != 0 {
			return nil
		}
		row, err := siteRow(tx, j.Site)
		if err != nil {
			return err
		}
		d := site.Delegation{Cancel: true}
		d.Grant.ID, d.Grant.Term = j.Grant, j.Term
		if row, err = appendDelegation(tx, row, &d); err != nil {
			return err
		}
		j.CancelAt, j.CancelSeq, changed = s.now(), d.Seq, true
		out = j
		if err := errors.Join(putJob(tx, j), s.putSite(tx, row)); err != nil {
			return err
		}
		return audit(tx, auditRow{At: j.CancelAt, Kind: "cancel", Site: j.Site, Grant: g, Text: fmt.Sprintf("asked, record %d", d.Seq)})
	})
	return out, changed && err == nil, err
}

// delegationsAfter reads what a site has not taken in, and which grants are taken back
// anywhere after its cursor: at most so many at once, and first of all those that it has
// and may be running. An ended one leaves room for the next, so each has its turn also
// while the cursor stands before a delegation that waits.
func delegationsAfter(tx *bolt.Tx, id forgeyard.SiteID, cursor uint64) (list [][]byte, last uint64, gone []string, err error) {
	last = cursor
	b, err := ofSite(tx, bucketDelegations, id)
	if err != nil || b == nil {
		return nil, last, nil, err
	}
	size, full := 0, false
	var unheard []string // it has not heard of them
	c := b.Cursor()
	for k, v := c.Seek(seqKey(cursor + 1)); k != nil && len(gone) < reckon.MaxCancelled; k, v = c.Next() {
		d, err := uplink.DecodeDelegation(v)
		if err != nil {
			return nil, last, nil, forgeyard.E("central store", forgeyard.Corrupt, err)
		}
		if d.Cancel {
			j, err := jobRow(tx, d.Grant.ID)
			switch {
			case err != nil:
				return nil, last, nil, err
			case j.Status.terminal():
			case j.Seq <= cursor:
				gone = append(gone, string(j.Grant))
			default:
				unheard = append(unheard, string(j.Grant))
			}
		}
		full = full || len(list) == reckon.MaxDelegations || len(list) > 0 && size+len(v) > maxDelegationBytes
		if !full {
			list, size, last = append(list, slices.Clone(v)), size+len(v), d.Seq
		}
	}
	gone = append(gone, unheard[:min(len(unheard), reckon.MaxCancelled-len(gone))]...)
	return list, last, gone, nil
}

// Pending lists the outcomes whose objects are not all here.
func (s *Store) Pending() (all []Job, err error) {
	err = s.view("objects", func(tx *bolt.Tx) error {
		return tx.Bucket(bucketPending).ForEach(func(k, _ []byte) error {
			j, err := jobRow(tx, forgeyard.GrantID(k))
			all = append(all, j)
			return err
		})
	})
	return all, err
}

// Fetched notes how the last try to bring a job's objects ended. Nil: all are here.
func (s *Store) Fetched(g forgeyard.GrantID, why error) error {
	text := ""
	if why != nil {
		text = forgeyard.Clip(why.Error(), maxAuditText)
	}
	return s.update("objects", func(tx *bolt.Tx) error {
		j, err := jobRow(tx, g)
		if err != nil {
			return err
		}
		done := why == nil && !j.Objects
		j.Objects, j.ObjectsErr = j.Objects || why == nil, text
		if err := putJob(tx, j); err != nil || !done {
			return err
		}
		return audit(tx, auditRow{At: s.now(), Kind: "objects", Site: j.Site, Grant: g, Text: fmt.Sprintf("%d objects are here", len(objectsOf(j)))})
	})
}

// Note writes an entry of its own into the audit.
func (s *Store) Note(kind, text string) error {
	return s.update("audit", func(tx *bolt.Tx) error { return audit(tx, auditRow{At: s.now(), Kind: kind, Text: text}) })
}

// auditEntry is a row with its number.
type auditEntry struct {
	seq uint64
	auditRow
}

// Audit lists the newest n entries, oldest first.
func (s *Store) Audit(n int) (all []auditEntry, err error) {
	err = s.view("audit", func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketAudit)
		c := b.Cursor()
		for k, _ := c.Last(); k != nil && len(all) < n; k, _ = c.Prev() {
			row, _, err := get[auditRow](b, k)
			if err != nil {
				return err
			}
			all = append(all, auditEntry{seqOf(k), row})
		}
		slices.Reverse(all)
		return nil
	})
	return all, err
}
