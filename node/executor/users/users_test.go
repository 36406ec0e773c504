package users

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/forgeyard/forgeyard-node"
)

func pool(t *testing.T, cfg Config, busy ...int) *Pool {
	t.Helper()
	cfg.Busy = func(int, int) (map[int]bool, error) {
		m := map[int]bool{}
		for _, b := range busy {
			m[b] = true
		}
		return m, nil
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func lend(t *testing.T, p *Pool, id string) int {
	t.Helper()
	u, err := p.Lend(id)
	if err != nil {
		t.Fatal(err)
	}
	if u.GID != u.UID {
		t.Fatalf("%s: the group is shared", u)
	}
	return u.UID
}

func TestLend(t *testing.T) {
	p := pool(t, Config{First: 5000, Count: 4, Seat: 6}, 5003)
	if got := lend(t, p, "a"); got != 5002 {
		t.Errorf("the seat is %d", got)
	}
	if got := lend(t, p, "b"); got != 5000 { // 5003 has a process
		t.Errorf("the second is %d", got)
	}
	if got := lend(t, p, "a"); got != 5002 {
		t.Errorf("the same id has %d now", got)
	}
	p.Return("b")
	p.Return("b")
	if got := lend(t, p, "c"); got != 5001 { // the one that was returned comes last
		t.Errorf("the third is %d", got)
	}
	if got := lend(t, p, "d"); got != 5000 {
		t.Errorf("the fourth is %d", got)
	}
	_, err := p.Lend("e")
	if forgeyard.KindOf(err) != forgeyard.Unavailable || !strings.Contains(err.Error(), "all 4 users from 5000") {
		t.Errorf("a fifth of three: %v", err)
	}
	if p.Lent() != 3 {
		t.Errorf("%d are lent", p.Lent())
	}
}

func TestHold(t *testing.T) {
	p := pool(t, Config{First: 5000, Count: 2})
	p.Hold("old", User{5000, 5000})
	p.Hold("older", User{65534, 65534}) // of a range that was set before
	if got := lend(t, p, "a"); got != 5001 {
		t.Errorf("a user that an earlier tree has was lent: %d", got)
	}
	p.Return("old")
	if got := lend(t, p, "b"); got != 5000 {
		t.Errorf("%d", got)
	}
}

func TestWhereThereIsNoRange(t *testing.T) {
	p := pool(t, Config{First: 990, Count: 1, GID: 991}, 990)
	for _, id := range []string{"a", "b"} {
		if u, err := p.Lend(id); err != nil || u != (User{990, 991}) {
			t.Errorf("%v %v", u, err)
		}
	}
	p.Return("a")
	if u, err := p.Lend("b"); err != nil || u.UID != 990 || p.Apart() || p.Lent() != 1 {
		t.Errorf("%v %v", u, err)
	}
	var none *Pool
	none.Hold("x", User{1, 1})
	none.Return("x")
	if u, err := none.Lend("a"); err != nil || u != Own || u.Lent() || none.Apart() {
		t.Errorf("%v %v", u, err)
	}
	if (User{}).Lent() {
		t.Error("root was lent")
	}
	if _, err := New(Config{First: -1}); forgeyard.KindOf(err) != forgeyard.Invalid {
		t.Errorf("%v", err)
	}
}

// Nobody can say which are free: then none is.
func TestBusyUnknown(t *testing.T) {
	p, err := New(Config{First: 5000, Count: 2, Busy: func(int, int) (map[int]bool, error) { return nil, errors.New("no /proc") }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Lend("a"); forgeyard.KindOf(err) != forgeyard.Unavailable {
		t.Errorf("%v", err)
	}
}

func TestManyAtOnce(t *testing.T) {
	p := pool(t, Config{First: 5000, Count: 64})
	var wg sync.WaitGroup
	var mu sync.Mutex
	has := map[int]string{}
	for i := range 64 {
		wg.Go(func() {
			id := fmt.Sprint(i)
			u, err := p.Lend(id)
			mu.Lock()
			defer mu.Unlock()
			if err != nil || has[u.UID] != "" {
				t.Errorf("%s got %v, which %q has: %v", id, u, has[u.UID], err)
			}
			has[u.UID] = id
		})
	}
	wg.Wait()
}
