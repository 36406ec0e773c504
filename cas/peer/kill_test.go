package peer

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	libpeer "github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
)

// killEnv says what a child is to fetch; killMiB, when set, is the size of the blob, which
// by itself is small enough for every run.
const (
	killEnv = "CAS_PEER_TEST_KILLED"
	killMiB = "FORGEYARD_TEST_KILL_MIB"
)

// C05: a process that fetches is killed at random bytes, again and again. Each one that
// follows finds at least 95 % of what the ones before had verified, and the last has all.
func TestC05KilledAtRandomBytes(t *testing.T) {
	if spec := os.Getenv(killEnv); spec != "" {
		fetchAloud(t, spec)
		return
	}
	blocks := 96
	if v := os.Getenv(killMiB); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 16 || n > 4096 {
			t.Fatalf("%s=%s is not in [16, 4096]", killMiB, v)
		}
		blocks = n
	}
	_, as, ah := diskNode(t, t.TempDir())
	ref := putDisk(t, as, noise(7, blocks*cas.BlockSize+99)) // one more block, a short one
	dir := t.TempDir()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	draw := rand.New(rand.NewPCG(seed, 1))
	verified, kills := 0, 0
	for whole := false; !whole; kills++ {
		if kills > 40 {
			t.Fatal("it does not come to an end")
		}
		cmd := exec.Command(os.Args[0], "-test.run", "^TestC05KilledAtRandomBytes$")
		cmd.Env = append(os.Environ(), killEnv+"="+strings.Join([]string{dir, ah.ID().String(), ah.Addrs()[0].String(), ref.Digest.String()}, " "))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		const atMost = 24 // blocks between two kills, for a small blob
		left := 1 + draw.IntN(max(atMost, blocks/6))
		put := 0
		for s := bufio.NewScanner(out); s.Scan(); {
			var missing int
			switch _, err := fmt.Sscanf(s.Text(), "missing %d", &missing); {
			case err == nil:
				if had := blocks + 1 - missing; had < verified*95/100 {
					t.Errorf("after %d kills %d blocks are there; %d were verified", kills, had, verified)
				} else {
					verified = had
				}
			case s.Text() == "put":
				verified++
				put++
			case s.Text() == "whole":
				whole = true
			}
			if put == left {
				time.Sleep(time.Duration(draw.IntN(2000)) * time.Microsecond) // somewhere in the next block
				_ = cmd.Process.Kill()
				put++ // once
			}
		}
		_ = cmd.Wait() // killed, or done
	}
	if kills < 3 {
		t.Fatalf("it was whole after %d processes: that tests little", kills)
	}
	t.Logf("%d processes for %d blocks", kills, blocks+1)
	_, cs, _ := diskNode(t, dir)
	if b := readDisk(t, cs, ref); cas.Sum(b) != ref.Digest {
		t.Fatal("other bytes came")
	}
}

// fetchAloud is the child: it tells what it finds missing, each block that it has kept, and
// when all is here.
func fetchAloud(t *testing.T, spec string) {
	w := strings.Fields(spec)
	x, st, h := diskNode(t, w[0])
	x.cfg.Store = &loudStore{Store: st}
	p, err := libpeer.Decode(w[1])
	if err != nil {
		t.Fatal(err)
	}
	a, err := ma.NewMultiaddr(w[2])
	if err != nil {
		t.Fatal(err)
	}
	d, err := forgeyard.ParseDigest(w[3])
	if err != nil {
		t.Fatal(err)
	}
	h.Peerstore().AddAddr(p, a, time.Hour)
	if err := x.FetchAny(t.Context(), d, []string{w[1]}); err != nil {
		t.Fatal(err)
	}
	fmt.Println("whole")
}

type loudStore struct {
	cas.Store
	told atomic.Bool
}

type loudPartial struct{ cas.Partial }

func (s *loudStore) Partial(ctx context.Context, m cas.Manifest) (cas.Partial, error) {
	p, err := s.Store.Partial(ctx, m)
	if err == nil && !s.told.Swap(true) {
		fmt.Println("missing", len(p.Missing()))
	}
	return loudPartial{p}, err
}

func (p loudPartial) PutBlock(i int, b []byte) error {
	err := p.Partial.PutBlock(i, b)
	if err == nil {
		fmt.Println("put")
	}
	return err
}
