# It turns round on the way up, and again.
begins missing told -> resting: wait
wanted busy -> resting: need
done -> resting: write-bridge
done -> bridged: wait, asking: bridge-answers
answered -> bridged: write-spares
done -> prepared: write-bridge
done -> prepared: wait, asking: spares-answer
wanted rest -> prepared: wait, asking: bridge-answers
answered -> prepared: delete-routes
wanted busy -> prepared: wait, asking: spares-answer
answered -> prepared: write-rules
done -> both: move-bridge
wanted rest -> both: withdraw
done -> prepared: write-bridge
done -> prepared: wait, asking: bridge-answers
answered -> prepared: delete-routes
done -> bridged: delete-bridge

# It turns round when the bridge has moved: that goes first.
begins full needed told -> own: write-bridge
wanted rest -> own: write-bridge
done -> both: withdraw
wanted busy -> both: move-bridge
done -> parting: wait, asking: bridge-gone
wanted rest -> parting: wait, asking: bridge-gone
answered -> parting: delete-bridge
done -> own: write-bridge

# The plan changes while there are spare rules. Requests may still need what the old ones name.
begins bridge spare needed told -> prepared: wait, asking: bridge-answers
wanted busy -> prepared: wait, asking: spares-answer
answered -> prepared: write-rules
plan -> prepared: need
done -> prepared: wait, asking: bridge-answers
answered -> prepared: write-spares
done -> prepared: write-bridge
done -> prepared: wait, asking: spares-answer
answered -> prepared: write-rules
done -> both: move-bridge

# Somebody deletes the bridge while no rule serves.
begins bridge spare needed told -> prepared: wait, asking: bridge-answers
wanted rest -> prepared: wait, asking: bridge-answers
lost bridge -> broken: write-bridge
done -> prepared: wait, asking: bridge-answers

# Somebody deletes the HTTPRoutes: activators serve.
begins full needed told -> own: write-bridge
wanted busy -> own: wait
lost routes -> resting: write-bridge

# Somebody has deleted the common HTTPRoutes: nothing may come to rest.
begins full needed told -> own: write-bridge
wanted rest -> own: write-bridge
lost common -> own: wait
found -> own: write-bridge
done -> both: withdraw
done -> prepared: write-bridge
done -> prepared: wait, asking: bridge-answers
answered -> prepared: delete-routes
done -> bridged: delete-bridge
lost common -> bridged: wait
found -> bridged: delete-bridge
done -> resting: release
done -> resting: wait

# A new Route.
begins missing -> new: tell
wanted rest -> new: tell
done -> resting: wait
wanted apart -> resting: need
done -> resting: write-bridge

# An older version's HTTPRoutes, with and without the setting.
begins full needed -> own: tell
wanted apart -> own: wait
wanted rest -> own: tell
done -> own: wait
followed -> own: write-bridge
