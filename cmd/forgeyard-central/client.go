package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	"github.com/forgeyard/forgeyard-node/api/render"
	"github.com/forgeyard/forgeyard-node/api/wire"
	"github.com/forgeyard/forgeyard-node/uplink/central"
)

// client speaks to the daemon of the data dir.
func (c *cli) client() (forgeyardv1connect.CentralServiceClient, error) {
	path := filepath.Join(c.dataDir, central.SocketName)
	if _, err := os.Stat(path); err != nil {
		return nil, forgeyard.Errorf("connect", forgeyard.Unavailable, "no daemon has %s", c.dataDir).WithHint("start it: forgeyard-central up --data-dir %s", c.dataDir)
	}
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: &p, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "unix", path)
		if err != nil {
			return nil, forgeyard.E("connect", forgeyard.Unavailable, err).WithHint("start the daemon: forgeyard-central up --data-dir %s", c.dataDir)
		}
		return conn, nil
	}}
	return forgeyardv1connect.NewCentralServiceClient(&http.Client{Transport: tr}, "http://central", connect.WithInterceptors(wire.Interceptor{})), nil
}

// show prints one message: as JSON, or as the text writes it.
func (c *cli) show(m proto.Message, text func(io.Writer)) error {
	if c.format == "json" {
		return render.JSON(c.out, m)
	}
	return c.columns(text)
}

// list prints several.
func list[M proto.Message](c *cli, all []M, text func(io.Writer)) error {
	if c.format == "json" {
		return render.List(c.out, all)
	}
	return c.columns(text)
}

func (c *cli) columns(text func(io.Writer)) error {
	w := tabwriter.NewWriter(c.out, 0, 4, 2, ' ', 0)
	text(w)
	return w.Flush()
}

// line writes one row of a table; the flush reports what went wrong.
func line(w io.Writer, cells ...any) {
	for i, v := range cells {
		if i > 0 {
			fmt.Fprint(w, "\t")
		}
		fmt.Fprint(w, v)
	}
	fmt.Fprintln(w)
}

func when(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return t.AsTime().UTC().Format(time.RFC3339)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
