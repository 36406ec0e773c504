package node

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	caspeer "github.com/forgeyard/forgeyard-node/cas/peer"
)

// doctor names the peer whose content did not match, and what to do there.
func TestDoctorNamesWhoSentWrongContent(t *testing.T) {
	if c := judgeExchange(nil); c.Status != checkOK {
		t.Fatalf("%+v", c)
	}
	bad := peer.ID("the one")
	c := judgeExchange([]caspeer.Liar{{Peer: bad, Times: 2, For: time.Minute}})
	if c.Status != checkWarn || !strings.Contains(c.Detail, bad.String()) || !strings.Contains(c.Fix, "cas verify") {
		t.Fatalf("%+v", c)
	}
}

// Whoever is busy is asked again, until it is not, the caller has no more time, or a minute has
// passed.
func TestBusyNodesAreAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, asked := time.Now(), 0
		untilNotBusy(t.Context(), bubbleClock{since: time.Now()}, busyFor, func() bool { asked++; return asked < 5 })
		if asked != 5 || time.Since(began) > 2*time.Second {
			t.Errorf("asked %d times in %s", asked, time.Since(began))
		}
		began, asked = time.Now(), 0
		untilNotBusy(t.Context(), bubbleClock{since: time.Now()}, busyFor, func() bool { asked++; return true })
		if took := time.Since(began); took < busyFor-busyMost || took > busyFor+busyMost || asked > 40 {
			t.Errorf("one that is always busy is asked %d times in %s", asked, took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		untilNotBusy(ctx, bubbleClock{since: time.Now()}, busyFor, func() bool { return true })
		if took := time.Since(began); took != time.Second {
			t.Errorf("without time it went on for %s", took)
		}
	})
}
