package main

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	v1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/api/render"
	"github.com/forgeyard/forgeyard-node/uplink/central"
)

func (c *cli) up() *cobra.Command {
	var listen, name string
	cmd := &cobra.Command{
		Use:     "up",
		Short:   "Run the daemon in the foreground",
		Long:    "Run the daemon in the foreground. It prints one line when it is ready, and logs to stderr.\nStopping and killing it at any moment is safe: sites go on and reconcile when it is back.",
		Example: "  forgeyard-central up --data-dir /srv/central --listen :7454 --name hq",
		Args:    exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			level := slog.LevelInfo
			if c.verbose {
				level = slog.LevelDebug
			}
			log := slog.New(slog.NewTextHandler(c.errs, &slog.HandlerOptions{Level: level}))
			d, err := central.Open(central.Config{DataDir: c.dataDir, Listen: listen, Name: name, Version: version, Log: log})
			if err != nil {
				return err
			}
			err = d.Run(cmd.Context(), func() { c.sayReady(d) })
			return errors.Join(err, d.Close())
		},
	}
	cmd.Flags().StringVar(&listen, "listen", ":7454", "HOST:PORT of the mesh, TCP and QUIC; port 0 takes a free one")
	cmd.Flags().StringVar(&name, "name", "central", "what sites show to people")
	return cmd
}

// sayReady prints the one line that scripts wait for.
func (c *cli) sayReady(d *central.Daemon) {
	if c.format == "json" {
		_ = render.NDJSON(c.out, &v1.CentralStatus{PeerId: d.PeerID(), Addrs: d.Addrs(), DataDir: c.dataDir, Version: version}) // a closed stdout does not stop a daemon
		return
	}
	fmt.Fprintf(c.out, "ready: peer %s on %s, control %s\n", d.PeerID(), strings.Join(d.Addrs(), " "), d.Socket())
}
