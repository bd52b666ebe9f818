# From rest to own, because it is busy.
begins missing told -> resting: wait
wanted busy -> resting: need
done -> resting: write-bridge
done -> bridged: wait, asking: bridge-answers
answered -> bridged: write-spares
done -> prepared: write-bridge
done -> prepared: wait, asking: spares-answer
answered -> prepared: write-rules
done -> both: move-bridge
done -> parting: wait, asking: bridge-gone
answered -> parting: delete-bridge
done -> own: wait
answered -> own: wait

# And back.
wanted rest -> own: write-bridge
done -> both: withdraw
done -> prepared: write-bridge
done -> prepared: wait, asking: bridge-answers
answered -> prepared: delete-routes
done -> bridged: delete-bridge
done -> resting: release
done -> resting: wait

# With a policy, activators forget the target when its HTTPRoutes are live.
wanted apart -> resting: need
done -> resting: write-bridge
done -> bridged: wait, asking: bridge-answers
answered -> bridged: write-spares
done -> prepared: write-bridge
done -> prepared: wait, asking: spares-answer
answered -> prepared: write-rules
done -> both: move-bridge
done -> parting: wait, asking: bridge-gone
answered -> parting: delete-bridge
done -> own: wait, asking: plan-answers
answered -> own: untell
done -> own: wait

# They learn of it before the HTTPRoutes go.
wanted rest -> own: tell
done -> own: wait
followed -> own: write-bridge
done -> both: withdraw
