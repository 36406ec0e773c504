package node

import (
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	caspeer "github.com/forgeyard/forgeyard-node/cas/peer"
)

// exchangeMetrics tell how content travels.
func (n *Node) exchangeMetrics(r *prometheus.Registry) {
	stats := func(of func(caspeer.Stats) int64) func() float64 {
		return func() float64 {
			if n.exchange == nil {
				return 0
			}
			return float64(of(n.exchange.Stats()))
		}
	}
	for name, m := range map[string]struct {
		help string
		of   func(caspeer.Stats) int64
	}{
		"cas_exchange_received_bytes_total":  {"Bytes of content that peers sent here.", func(s caspeer.Stats) int64 { return s.BytesIn }},
		"cas_exchange_sent_bytes_total":      {"Bytes of content that were sent to peers.", func(s caspeer.Stats) int64 { return s.BytesOut }},
		"cas_exchange_bulk_blocks_in_total":  {"Blocks that came over bulk connections.", func(s caspeer.Stats) int64 { return s.BulkIn }},
		"cas_exchange_bulk_blocks_out_total": {"Blocks that were sent over bulk connections.", func(s caspeer.Stats) int64 { return s.BulkOut }},
		"cas_exchange_duplicates_total":      {"Blocks that came although they were here or not wanted any more.", func(s caspeer.Stats) int64 { return s.DuplicateBlocks }},
		"cas_exchange_doubted_total":         {"Wrong blocks that a peer was asked for once more, to be read with care.", func(s caspeer.Stats) int64 { return s.Doubted }},
		"cas_exchange_hedged_total":          {"Wants sent to a second peer because the first was silent.", func(s caspeer.Stats) int64 { return s.Hedged }},
		"cas_exchange_silent_total":          {"Times that a peer was given up for its silence.", func(s caspeer.Stats) int64 { return s.SilentPeers }},
		"cas_exchange_late_total":            {"Wants that waited in vain at a peer that fetches the same.", func(s caspeer.Stats) int64 { return s.Late }},
		"cas_exchange_fetches_failed_total":  {"Fetches that ended with an error.", func(s caspeer.Stats) int64 { return s.Failed }},
	} {
		r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "forgeyard", Name: name, Help: m.help}, stats(m.of)))
	}
	for name, m := range map[string]struct {
		help string
		of   func(caspeer.Stats) int64
	}{
		"cas_exchange_bulk_connections": {"Bulk connections that are open, of both directions.", func(s caspeer.Stats) int64 { return s.BulkPeers }},
		"cas_exchange_outstanding":      {"Blocks that are wanted from peers now.", func(s caspeer.Stats) int64 { return s.Outstanding }},
		"cas_exchange_parked":           {"Wants of peers that wait here for what is on its way.", func(s caspeer.Stats) int64 { return s.Parked }},
	} {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "forgeyard", Name: name, Help: m.help}, stats(m.of)))
	}
}

// checkExchange names the peers whose content is not trusted now.
func (n *Node) checkExchange() *forgeyardv1.Health_Check {
	var liars []caspeer.Liar
	if n.exchange != nil {
		liars = n.exchange.Liars()
	}
	return judgeExchange(liars)
}

func judgeExchange(liars []caspeer.Liar) *forgeyardv1.Health_Check {
	c := check("exchange")
	if len(liars) == 0 {
		c.Detail = "no peer sent wrong content lately"
		return c
	}
	var names []string
	for _, l := range liars {
		names = append(names, fmt.Sprintf("%s (%d times, asked last for %v)", l.Peer, l.Times, l.For.Round(time.Second)))
	}
	sort.Strings(names)
	c.Status, c.Detail = checkWarn, "content of these peers did not match its name: "+strings.Join(names, ", ")
	c.Fix = "on that node run: forgeyard-node cas verify; what it finds is fetched again"
	return c
}
