package node

import (
	"strings"
	"testing"
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
