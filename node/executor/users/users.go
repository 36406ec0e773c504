// Package users lends host users to process trees, one tree a user.
//
//	free ── Lend(id) ──▶ lent ── Return(id) ──▶ free, and the last to be lent again
//	  │ Hold(id, user): a tree of an earlier process may still run under it
//	  └──────────────────▶ lent
//
// Two trees under one user are open to each other: the kernel lets a process read the
// memory, the environment and, through /proc/PID/root, the files of every other of its
// user, whatever namespaces lie between. So each attempt gets a number that no account of the
// machine has, and nothing else of this machine runs under.
//
// Invariants: no two ids hold one user of a range; a user of which any process runs, ours or
// not, is not lent, so neither a tree that would not die nor another node on this machine
// shares one. The numbers are lent in turn, so that one comes back as late as can be: files
// that a job left outside of its workspace belong to it then.
//
// It starts nothing and owns no files.
package users

import (
	"fmt"
	"sync"

	"github.com/forgeyard/forgeyard-node"
)

// User is a host user and its group. -1 is the runner's own.
type User struct {
	UID int `json:"uid"`
	GID int `json:"gid"`
}

// Own is the runner's own user: nothing is lent, nothing changes hands.
var Own = User{UID: -1, GID: -1}

// Lent reports whether it is another user than the runner's own. The zero value is root,
// which is never lent.
func (u User) Lent() bool { return u.UID > 0 }

func (u User) String() string { return fmt.Sprintf("%d:%d", u.UID, u.GID) }

// The numbers that are lent where nobody says which.
const (
	// DefaultFirst lies above the numbers of accounts and of services, and below those that
	// `useradd` gives to containers (100000 and above).
	DefaultFirst = 70_000
	// DefaultCount is the most jobs that a node runs at once.
	DefaultCount = 1024
	// A container often has 65536 numbers. These lie between what login managers and what
	// services take.
	smallFirst = 60_720
	smallCount = 384
	// nobody is shared where there is no range at all.
	nobody = 65_534
)

// Config of a pool.
type Config struct {
	// First and Count are the range of users. Zero: the defaults, or what this machine has of
	// them. With a count of one all trees share the user, and are open to each other.
	First, Count int
	// GID is the group of all of them. Zero: each has the group of its own number.
	GID int
	// Seat is where the range is begun, modulo its length: two nodes on one machine do not
	// go through it in step.
	Seat int
	// Busy lists users of a range that processes of this machine have now. Nil: what /proc says.
	Busy func(first, count int) (map[int]bool, error)
}

// Pool lends the users of a range. A nil pool lends the runner's own user to everybody. It is
// safe for concurrent use.
type Pool struct {
	cfg Config

	mu   sync.Mutex // guards all below
	next int        // distance of the next to try from First
	lent map[string]int
	held map[int]bool // users in lent
}

// New makes a pool. Invalid: a range with root in it, or one that this machine does not have.
func New(cfg Config) (*Pool, error) {
	mapped := mappedUsers()
	guessed := cfg.First == 0
	if guessed {
		cfg.First, cfg.Count = DefaultFirst, DefaultCount
		if !mapped(cfg.First, cfg.Count) {
			cfg.First, cfg.Count = smallFirst, smallCount
		}
		if !mapped(cfg.First, cfg.Count) {
			cfg.First, cfg.Count, cfg.GID = nobody, 1, nobody
		}
	}
	cfg.Count = max(cfg.Count, 1)
	switch {
	case cfg.First < 1 || cfg.GID < 0:
		return nil, forgeyard.Errorf("users", forgeyard.Invalid, "first user %d and group %d: work never runs as root", cfg.First, cfg.GID)
	case !guessed && !mapped(cfg.First, cfg.Count): // a guess that fails is told by the probes
		return nil, forgeyard.Errorf("users", forgeyard.Invalid, "users %d to %d are not all there in this machine's user namespace", cfg.First, cfg.First+cfg.Count-1).
			WithHint("set users.first and users.count in node.yaml to a range of /proc/self/uid_map")
	}
	if cfg.Busy == nil {
		cfg.Busy = busyUsers
	}
	return &Pool{cfg: cfg, next: cfg.Seat % cfg.Count, lent: map[string]int{}, held: map[int]bool{}}, nil
}

// Apart reports whether trees have users of their own.
func (p *Pool) Apart() bool { return p != nil && p.cfg.Count > 1 }

// Range is the first user and how many there are; none for a nil pool.
func (p *Pool) Range() (first, count int) {
	if p == nil {
		return -1, 0
	}
	return p.cfg.First, p.cfg.Count
}

// Lend gives the tree of that id a user until Return; the same id gets the same one again.
// Unavailable: all are lent, or nobody can say which are free.
func (p *Pool) Lend(id string) (User, error) {
	if p == nil {
		return Own, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if uid, ok := p.lent[id]; ok {
		return p.user(uid), nil
	}
	if p.cfg.Count == 1 {
		p.lent[id] = p.cfg.First
		return p.user(p.cfg.First), nil
	}
	busy, err := p.cfg.Busy(p.cfg.First, p.cfg.Count)
	if err != nil {
		return User{}, forgeyard.E("lend a user", forgeyard.Unavailable, err)
	}
	for i := range p.cfg.Count {
		at := (p.next + i) % p.cfg.Count
		uid := p.cfg.First + at
		if p.held[uid] || busy[uid] {
			continue
		}
		p.next = (at + 1) % p.cfg.Count
		p.lent[id], p.held[uid] = uid, true
		return p.user(uid), nil
	}
	return User{}, forgeyard.Errorf("lend a user", forgeyard.Unavailable, "all %d users from %d on are lent or have processes", p.cfg.Count, p.cfg.First).
		WithHint("look who runs under them, or set users.count in node.yaml higher")
}

func (p *Pool) user(uid int) User {
	if p.cfg.GID != 0 {
		return User{UID: uid, GID: p.cfg.GID}
	}
	return User{UID: uid, GID: uid}
}

// Hold takes back a loan of an earlier process of this runner, whose tree or files may still
// be there. A user that is not of the range needs no hold.
func (p *Pool) Hold(id string, u User) {
	if p == nil || u.UID < p.cfg.First || u.UID >= p.cfg.First+p.cfg.Count {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lent[id], p.held[u.UID] = u.UID, true
}

// Return ends a loan: nothing of the tree runs, and no file that others can find is its. What it
// left in memory that outlives its processes goes, where the user was its alone: no limit holds
// that any more, and whoever has the user next could read it.
func (p *Pool) Return(id string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	uid, ok := p.lent[id]
	if !ok {
		return
	}
	if p.cfg.Count > 1 {
		freeShared(uid)
	}
	delete(p.lent, id)
	if p.cfg.Count > 1 {
		delete(p.held, uid)
	}
}

// Lent counts the loans.
func (p *Pool) Lent() int {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lent)
}
